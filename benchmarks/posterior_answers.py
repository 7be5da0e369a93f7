"""Whether answers that use the monitor's posterior earn more, for merged models and for the un-merged MoE alike.

    python benchmarks/posterior_answers.py --quick                    # the embedded model on generated rows
    python benchmarks/posterior_answers.py --model DIR --data GLUE --out FILE

Rows are those of `experiments.corpus`: the monitor learns from held rows, answers are scored on rows that no training
saw. No request carries a tag, but for *tagged MoE*, where every task is answered by its own expert. Every setting
answers the same rows with and without the posterior, so the difference is paired.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tanbr.files import write_atomically
from tanbr.lab import corpus
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.moe import embedded
from tanbr.moe.text import TextEncoder
from tanbr.monitor.config import MonitorConfig
from tanbr.tasks.answering import with_posterior
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row
from tanbr.types import Blend, FloatArray

BATCH = 64


@torch.inference_mode()
def answered(moe: Moe, encode: TextEncoder, blend: Blend, rows: list[Row]) -> FloatArray:
    """Answer rows with a blend: logits (n, columns)."""
    model = moe.dense(blend)
    parts = [
        model(**encode([row.text for row in rows[start : start + BATCH]])).logits.double().numpy()
        for start in range(0, len(rows), BATCH)
    ]
    return np.concatenate(parts)


def by_task(space: LabelSpace, rows: list[Row], logits: FloatArray) -> FloatArray:
    """Reward each row (n,)."""
    return space.rewards(rows, space.answers(rows, logits))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rows")
    parser.add_argument("--model", type=Path, default=embedded.path(), help="a task-routed MoE: expert v is task v's")
    parser.add_argument("--data", type=Path, help="GLUE's folder; without it, the generated tasks")
    parser.add_argument("--rows", type=int, default=300, help="rows a task")
    parser.add_argument("--blends", type=int, default=6, help="random blends of two and of three experts, of each")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.blends = 40, 2
    torch.set_num_threads(1)
    moe = open_moe(options.model)
    data = corpus.of_data(options.data) if options.data else corpus.generated()
    space, K = data.space, moe.num_experts
    encode = TextEncoder.of(options.model, vocab_size=moe.dense().config.vocab_size)
    rows = [row for task in data.tasks for row in data.stream[task.name][: options.rows]]
    index = {task.name: v for v, task in enumerate(data.tasks)}
    of = np.array([index[row.task] for row in rows])
    recogniser = data.taught_monitor(MonitorConfig(), seed=0).snapshot()
    posteriors = recogniser.recognise([row.text for row in rows]).posteriors

    rng = np.random.default_rng(0)
    blends = {"even": [np.full(K, 1 / K)], "one expert": list(np.eye(K))}
    for size in (2, 3):
        chosen = [rng.choice(K, size, replace=False) for _ in range(options.blends)]
        blends[f"{size} experts"] = [np.eye(K)[few].mean(axis=0) for few in chosen]
    logits = {
        name: [answered(moe, encode, blend, rows) for blend in track(many, name, transient=True)]
        for name, many in blends.items()
    }
    alone = np.stack(logits["one expert"])  # (K, n, columns)
    if len(data.tasks) == K:
        logits["tagged MoE"] = [alone[of, np.arange(len(rows))]]
        logits["MoE, task by the monitor"] = [alone[posteriors.argmax(axis=1), np.arange(len(rows))]]

    recognised = float((posteriors.argmax(axis=1) == of).mean())
    settings: dict[str, Any] = {}
    table = Table(
        "setting", "reward", "with the posterior", "points", "± 2 s.e.", "worst of its blends", "tasks that lose"
    )
    for name, many in logits.items():
        plain = np.stack([by_task(space, rows, one) for one in many])  # (blends, n)
        used = np.stack([by_task(space, rows, with_posterior(space, one, posteriors)) for one in many])
        gain = 100 * (used - plain)
        each = gain.mean(axis=0)
        tasks = {task.name: float(each[of == v].mean()) for task, v in zip(data.tasks, index.values(), strict=True)}
        figures: dict[str, Any] = {
            "plain": float(plain.mean()),
            "posterior": float(used.mean()),
            "points": float(gain.mean()),
            "points_2se": float(2 * each.std(ddof=1) / np.sqrt(len(rows))),
            "worst_blend": float(gain.mean(axis=1).min()),
            "points_by_task": tasks,
        }
        settings[name] = figures
        losers = ", ".join(f"{task} {points:+.1f}" for task, points in tasks.items() if points < 0)
        table.add_row(
            name, f"{figures['plain']:.3f}", f"{figures['posterior']:.3f}", f"{figures['points']:+.2f}",
            f"{figures['points_2se']:.2f}", f"{figures['worst_blend']:+.2f}", losers,
        )  # fmt: skip
    console = Console(width=140)
    console.print(table)
    console.print(f"{len(rows)} rows; the monitor recognises {100 * recognised:.1f}% of them")
    if options.out:
        write_atomically(
            options.out,
            json.dumps({"rows": len(rows), "recognised": recognised, "settings": settings}, indent=1) + "\n",
        )


if __name__ == "__main__":
    main()
