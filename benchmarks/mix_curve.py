"""Is tanbr for you? What following the task mix is worth, by how many tasks a slot holds.

Mixes from one task alone to all alike, each drawn on its own. The blend in proportion to the mix is compared with the
even blend, the best merge that no traffic moves, on the same requests: with the mix known, and with the mix that a
monitor reads off one earlier slot of so many requests. Answers are weighed by the posterior, for all alike.
"""

import argparse
import copy
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tanbr
from suite.slots import active_tasks, earned, task_numbers
from tanbr.files import write_atomically
from tanbr.lab.answers import Answers, model_for
from tanbr.lab.corpus import Corpus, generated, of_data
from tanbr.lab.pictures import LINES, figure, name_below, styled
from tanbr.lab.task_figures import own_experts
from tanbr.lab.tasks.traffic import Traffic
from tanbr.moe import embedded
from tanbr.monitor import Monitor
from tanbr.monitor.belief import by_mix
from tanbr.monitor.config import MonitorConfig
from tanbr.types import FloatArray

ALPHAS = (0.03, 0.1, 0.3, 1.0, 5.0)  # from one task alone to all alike
BINS = (1.0, 1.3, 2.0, 3.0, 4.5, 6.5, 8.0)  # of 1 / Σψ²
KNOWN = "mix known"


def estimated(monitor: Monitor, corpus: Corpus, mix: FloatArray, requests: int, seed: int) -> FloatArray:
    """Let a monitor that has seen no traffic yet read one slot drawn by `mix` (V,), and forecast the next one's."""
    [slot] = Traffic(corpus.stream, mix[None], requests=requests, seed=seed)
    fresh = copy.deepcopy(monitor)
    fresh.observe(slot.texts)
    return fresh.close_slot().forecast


def measured(
    moe: Any, corpus: Corpus, *, draws: int, requests: int, sizes: tuple[int, ...], seed: int
) -> list[dict[str, Any]]:
    """Serve a slot of every mix: of each, its active tasks and the reward (labels, posterior) of what is held."""
    space, V = corpus.space, len(corpus.tasks)
    own = np.eye(moe.num_experts)[list(own_experts(moe, [task.name for task in corpus.tasks]))]
    monitor = corpus.taught_monitor(MonitorConfig(), seed=seed)
    recogniser, answers = monitor.snapshot(), Answers(model_for(moe, space))
    rng = np.random.default_rng(seed)
    mixes = np.concatenate([rng.dirichlet(np.full(V, alpha), draws) for alpha in ALPHAS])
    rows = []
    for number, slot in enumerate(Traffic(corpus.stream, mixes, requests=requests, seed=seed)):
        posteriors = by_mix(recogniser.recognise(slot.texts).posteriors, slot.mix)
        forecasts = {KNOWN: slot.mix}
        forecasts |= {
            f"slots of {n}": estimated(monitor, corpus, slot.mix, n, seed=1_000 * (seed + 1) + number) for n in sizes
        }
        one = np.zeros(len(slot.rows), np.intp)
        held = {"even": ([np.full(moe.num_experts, 1 / moe.num_experts)], one), "tags": (list(own), None)}
        held |= {name: ([mix @ own], one) for name, mix in forecasts.items()}
        rewards = {
            name: earned(
                answers, slot, blends, task_numbers(slot, space) if of is None else of,
                posteriors=posteriors, space=space,
            )
            for name, (blends, of) in held.items()
        }  # fmt: skip
        rows.append({"active_tasks": active_tasks(slot.mix), "reward": rewards})
        print(f"{number + 1}/{len(mixes)}  1/Σψ² {rows[-1]['active_tasks']:.2f}  {rewards}", flush=True)
    return rows


def leads(rows: list[dict[str, Any]], name: str, way: int = 1) -> list[tuple[float, float, float]]:
    """Average the lead over the even blend, bin by bin: active tasks, points, standard error."""
    active = np.array([row["active_tasks"] for row in rows])
    lead = np.array([100 * (row["reward"][name][way] - row["reward"]["even"][way]) for row in rows])
    found = []
    for low, high in itertools.pairwise(BINS):
        inside = (active >= low) & (active <= high)
        if inside.sum() > 1:
            error = lead[inside].std(ddof=1) / np.sqrt(inside.sum())
            found.append((float(active[inside].mean()), float(lead[inside].mean()), float(error)))
    return found


@styled
def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the leads against the number of active tasks."""
    canvas, [axis] = figure(3.4)
    names = [name for name in rows[0]["reward"] if name not in ("even", "tags")]
    for name, colour in zip(("tags", *names), LINES, strict=False):
        x, y, error = zip(*leads(rows, name), strict=True)
        label = "un-merged, tags" if name == "tags" else f"follows the mix: {name}"
        axis.errorbar(x, y, error, color=colour, label=label, capsize=2, linestyle=":" if name == "tags" else "-")
    axis.axhline(0, color="#999999", linewidth=0.8)
    axis.set_xlabel("tasks that a slot holds, 1 / Σψ²")
    axis.set_ylabel("points above the even blend")
    name_below(canvas)
    canvas.savefig(path, dpi=150)


def main() -> None:
    """Measure, print, write JSON and the picture beside it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?", help="with `tanbr grams` for regression; or the embedded")
    parser.add_argument("--data", type=Path, default=None, help="GLUE's folder; the generated tasks if left out")
    parser.add_argument("--method", default="average", help="how blends are merged")
    parser.add_argument("--draws", type=int, default=8, help=f"mixes of each Dirichlet(α), α = {ALPHAS}")
    parser.add_argument("--requests", type=int, default=256, help="requests that each mix is scored on")
    parser.add_argument("--sizes", default="16,64,512", help="requests of the slot that the monitor reads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="few requests, nothing written")
    parser.add_argument("--out", type=Path, default=None, help="JSON file; the picture has its name")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.quick:
        arguments.draws, arguments.requests, arguments.sizes, arguments.out = 2, 32, "64", None
    corpus = generated() if arguments.data is None else of_data(arguments.data)
    moe = tanbr.open(arguments.checkpoint or embedded.path(), method=arguments.method)
    sizes = tuple(int(size) for size in arguments.sizes.split(","))
    rows = measured(moe, corpus, draws=arguments.draws, requests=arguments.requests, sizes=sizes, seed=arguments.seed)
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    for name in (name for name in rows[0]["reward"] if name != "even"):
        print(f"{name:14s}", "  ".join(f"{x:.1f}: {y:+.1f} ± {error:.1f}" for x, y, error in leads(rows, name)))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        facts = {"command": " ".join(["python benchmarks/mix_curve.py", *words]), "model_sha256": moe.fingerprint}
        write_atomically(arguments.out, json.dumps({**facts, "data": corpus.name, "slots": rows}, indent=1) + "\n")
        draw(rows, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
