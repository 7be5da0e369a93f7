"""What regressing biases is worth: blends in proportion to the mix, biases averaged or solved with the weights.

Held rows only: matrices and means from the first half of those that training left alone, requests from the second.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch

import tanbr
from levers import played, settings, table
from suite.affine import AffineRegression, means_of
from tanbr.files import write_atomically
from tanbr.lab.answers import Answers, model_for
from tanbr.lab.corpus import of_data
from tanbr.lab.rivals.probes import probes_of
from tanbr.lab.task_figures import own_experts
from tanbr.monitor.config import MonitorConfig

METHODS = ("regression", "suite.affine:AffineRegression")


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="needs `tanbr grams CHECKPOINT` first")
    parser.add_argument("--data", type=Path, required=True, help="GLUE's folder")
    parser.add_argument("--rows", type=int, default=64, help="rows per task that `tanbr grams` was given")
    parser.add_argument("--draws", type=int, default=16, help="mixes of each Dirichlet")
    parser.add_argument("--requests", type=int, default=256, help="requests drawn by each mix")
    parser.add_argument("--out", type=Path, default=None, help="JSON file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    corpus = of_data(arguments.data, rehearse=True)
    moe = tanbr.open(arguments.checkpoint)
    owners = own_experts(moe, [task.name for task in corpus.tasks])
    probes = probes_of(moe, corpus.first_held(arguments.rows), space=corpus.space, own=owners)
    AffineRegression.means = means_of(moe, probes)
    recogniser = corpus.taught_monitor(MonitorConfig(), seed=0).snapshot()
    drawn = settings(corpus, draws=arguments.draws, requests=arguments.requests)
    drawn.pop("one task")  # nothing is merged
    found = {}
    for method in METHODS:
        by = tanbr.open(arguments.checkpoint, method=method)
        answers = Answers(model_for(by, corpus.space))
        own = np.eye(by.num_experts)[list(owners)]
        found[method] = {
            name: list(played(answers, slots, own, recogniser, corpus.space)) for name, slots in drawn.items()
        }
        print(table(arguments.checkpoint.name, method, found[method]), flush=True)
    gains = {name: _gain(*(found[method][name] for method in METHODS)) for name in drawn}
    for name, (mean, error) in gains.items():
        print(f"{name}, proportional: biases regressed {mean:+.2f} ± {error:.2f} points (standard error over mixes)")
    if arguments.out:
        words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
        result = {"command": " ".join(["python benchmarks/biases.py", *words]), "gain": gains, "figures": found}
        write_atomically(arguments.out, json.dumps(result, indent=1) + "\n")


def _gain(before: list[dict[str, list[float]]], after: list[dict[str, list[float]]]) -> tuple[float, float]:
    """Points that the proportional blend gains, with labels as answers, and their standard error over mixes."""
    gained = 100 * np.array([b["proportional"][0] - a["proportional"][0] for a, b in zip(before, after, strict=True)])
    return float(gained.mean()), float(gained.std(ddof=1) / len(gained) ** 0.5) if len(gained) > 1 else 0.0


if __name__ == "__main__":
    main()
