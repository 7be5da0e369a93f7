"""What each lever is worth to one merged model: the same requests, answered by every checkpoint and merge method.

A lever is a way to make a checkpoint (experts trained to be merged, norms tuned) or to merge it. Requests are drawn by
the even mix, of one task at a time, and by draws of Dirichlet(0.3) and (0.1), each on its own. Merged are the even
blend, which no traffic moves, and the blend in proportion to the mix, which is told; beside them each request's own
expert (`tags`). Answers are a head's best label, and weighed by the monitor's posterior under the mix.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tanbr
from suite.slots import active_tasks, earned, task_numbers
from tanbr.files import write_atomically
from tanbr.lab.answers import Answers, model_for
from tanbr.lab.corpus import Corpus, generated, of_data
from tanbr.lab.task_figures import own_experts
from tanbr.lab.tasks.traffic import SlotRequests, Traffic
from tanbr.moe import embedded
from tanbr.monitor.belief import by_mix
from tanbr.monitor.config import MonitorConfig
from tanbr.monitor.recogniser import Recogniser
from tanbr.tasks.metrics import LabelSpace
from tanbr.types import FloatArray


def settings(corpus: Corpus, *, draws: int, requests: int, seed: int = 0) -> dict[str, list[SlotRequests]]:
    """Draw the requests of every setting, slot by slot."""
    V = len(corpus.tasks)
    rng = np.random.default_rng(seed)
    mixes = {
        "even mix": np.full((1, V), 1 / V),
        "one task": np.eye(V),
        "Dirichlet(0.3)": rng.dirichlet(np.full(V, 0.3), draws),
        "Dirichlet(0.1)": rng.dirichlet(np.full(V, 0.1), draws),
    }
    total = draws * requests
    return {
        name: list(Traffic(corpus.stream, mix, requests=total // len(mix), seed=seed)) for name, mix in mixes.items()
    }


def played(
    answers: Answers, slots: Sequence[SlotRequests], own: FloatArray, recogniser: Recogniser, space: LabelSpace
) -> Iterator[dict[str, list[float]]]:
    """Serve the slots, with the experts `own` (V, K) of the tasks: of each slot, what is held → reward by WAYS."""
    even = np.full(own.shape[1], 1 / own.shape[1])
    for slot in slots:
        posteriors = by_mix(recogniser.recognise(slot.texts).posteriors, slot.mix)
        one = np.zeros(len(slot.rows), np.intp)
        held = {
            "even": ([even], one),
            "proportional": ([slot.mix @ own], one),
            "tags": (list(own), task_numbers(slot, space)),
        }
        yield {
            name: earned(answers, slot, blends, of, posteriors=posteriors, space=space)
            for name, (blends, of) in held.items()
        }


def main() -> None:
    """Measure, print, write JSON; checkpoints and methods that are in the file already are not measured again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoints", nargs="*", help="NAME=FOLDER; regressions need `tanbr grams FOLDER` first")
    parser.add_argument("--data", type=Path, default=None, help="GLUE's folder; the generated tasks if left out")
    parser.add_argument("--methods", default="average", help="merge methods, by comma")
    parser.add_argument("--draws", type=int, default=16, help="mixes of each Dirichlet")
    parser.add_argument("--requests", type=int, default=192, help="requests drawn by each mix")
    parser.add_argument("--quick", action="store_true", help="few requests, nothing written")
    parser.add_argument("--rehearse", action="store_true", help="leave dev alone: requests from held-back rows")
    parser.add_argument("--out", type=Path, default=None, help="JSON file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.quick:
        arguments.draws, arguments.requests, arguments.out = 4, 32, None
    corpus = generated() if arguments.data is None else of_data(arguments.data, rehearse=arguments.rehearse)
    drawn = settings(corpus, draws=arguments.draws, requests=arguments.requests)
    recogniser = corpus.taught_monitor(MonitorConfig(), seed=0).snapshot()
    words = [re.sub(r"(^|=)/\S*/", r"\1", word) for word in sys.argv[1:]]  # without this machine's folders
    result: dict[str, Any] = {
        "command": " ".join(["python benchmarks/levers.py", *words]),
        "requests": f"{corpus.name}, {arguments.draws} mixes × {arguments.requests}",
        "active_tasks": {name: float(np.mean([active_tasks(s.mix) for s in slots])) for name, slots in drawn.items()},
        "figures": {},  # checkpoint → method → setting → slots, each: what is held → reward by labels, by the posterior
    }
    if arguments.out and arguments.out.exists():
        result["figures"] = json.loads(arguments.out.read_text())["figures"]
    for place in arguments.checkpoints or [f"embedded={embedded.path()}"]:
        name, _, folder = place.partition("=")
        for method in arguments.methods.split(","):
            if method in result["figures"].get(name, {}):
                continue
            moe = tanbr.open(folder, method=method)
            own = np.eye(moe.num_experts)[list(own_experts(moe, [task.name for task in corpus.tasks]))]
            answers = Answers(model_for(moe, corpus.space))
            found = {
                setting: list(played(answers, slots, own, recogniser, corpus.space)) for setting, slots in drawn.items()
            }
            result["figures"].setdefault(name, {})[method] = found
            if arguments.out:
                arguments.out.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(arguments.out, json.dumps(result, indent=1) + "\n")
            print(table(name, method, found), flush=True)


def table(name: str, method: str, found: dict[str, list[dict[str, list[float]]]]) -> str:
    """Lay out the means of one checkpoint and method, in points, by both WAYS."""
    lines = [f"{name}, {method}"]
    for setting, slots in found.items():
        means = {held: 100 * np.mean([slot[held] for slot in slots], axis=0) for held in slots[0]}
        cells = "   ".join(f"{held} {labels:.1f} / {posterior:.1f}" for held, (labels, posterior) in means.items())
        lines.append(f"  {setting:15s} {cells}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
