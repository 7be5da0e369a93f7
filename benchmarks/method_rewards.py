"""What merge methods earn on a real model: the reward of the even blend, and of blends in proportion to a few mixes.

Every method merges the same blends of one checkpoint and answers the same GLUE dev rows; the Gram matrices that the
regressions need are measured on held-back rows of train, in a scratch folder beside links to the checkpoint's files.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tanbr
from tanbr.baselines.probes import head_probes
from tanbr.baselines.regmean import measure
from tanbr.experiments.answers import model_for
from tanbr.experiments.corpus import of_data
from tanbr.experiments.survey import survey
from tanbr.experiments.task_figures import own_experts
from tanbr.merge.methods import METHODS


def linked(checkpoint: Path, folder: Path) -> Path:
    """Make a folder whose files are the checkpoint's, so that matrices can lie beside them."""
    folder.mkdir()
    for file in checkpoint.iterdir():
        if file.is_file():
            (folder / file.name).symlink_to(file.resolve())
    return folder


def rewards_of(name: str, folder: Path, corpus: Any, rows: Any, blends: Any) -> dict[str, Any]:
    """Serve all rows with every blend, merged by one method."""
    start = time.monotonic()
    model = model_for(tanbr.open(folder, method=name), corpus.space)
    found = survey(model, rows, space=corpus.space, blends=blends)
    return {"rewards": found.rewards, "figures": found.figures, "seconds": time.monotonic() - start}


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="GLUE's folder")
    parser.add_argument("--rows", type=int, default=100, help="dev rows of every task")
    parser.add_argument("--grams", type=int, default=64, help="held rows of every task behind the Gram matrices")
    parser.add_argument("--mixes", type=int, default=3, help="Dirichlet(0.3) mixes beside the even one")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--ancestor", type=Path, default=None, help="the experts' dense ancestor, as the methods' base")
    parser.add_argument("--out", type=Path, default=None, help="JSON file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    corpus = of_data(arguments.data, pool=arguments.rows)
    rows = {task: of_task[: arguments.rows] for task, of_task in corpus.stream.items()}
    V = len(corpus.tasks)
    mixes = np.random.default_rng(0).dirichlet(np.full(V, 0.3), arguments.mixes)  # (n, V)
    with tempfile.TemporaryDirectory() as scratch:
        folder = linked(arguments.checkpoint, Path(scratch) / "moe")
        moe = tanbr.open(folder)
        own = own_experts(moe, [task.name for task in corpus.tasks])
        proportional = np.zeros((len(mixes), moe.num_experts))
        proportional[:, list(own)] = mixes
        blends = np.array([np.full(moe.num_experts, 1 / moe.num_experts), *proportional])
        names = arguments.methods.split(",")
        if {"regression", "regmeanpp"} & set(names):
            probes = head_probes(moe, corpus.first_held(arguments.grams), space=corpus.space, own=own)
            for merged in (False, True):
                measure(moe, probes, rows=arguments.grams, merged=merged)
        words = [word.rsplit("/", 1)[-1] if word.startswith("/") else word for word in sys.argv[1:]]
        result: dict[str, Any] = {
            "command": " ".join(["python", "benchmarks/method_rewards.py", *words]),
            "model_sha256": moe.fingerprint,
            "rows_a_task": {task: len(of_task) for task, of_task in rows.items()},
            "mixes": mixes.round(4).tolist(),
            "methods": {},
        }
        alone = rewards_of("average", folder, corpus, rows, np.eye(moe.num_experts))
        best = [float(alone["rewards"][k, v]) for v, k in enumerate(own)]
        result["own_expert"] = {"even": float(np.mean(best)), "mixes": (mixes @ np.array(best)).round(4).tolist()}
        print(f"{'own expert, told the task':26s} {result['own_expert']}", flush=True)
        for name in names:
            base = f":base={arguments.ancestor}" if arguments.ancestor else ""
            found = rewards_of(name + base, folder, corpus, rows, blends)
            even, *others = found["rewards"]
            row = {
                "even": float(even.mean()),
                "even_blend_on_mixes": (mixes @ even).round(4).tolist(),
                "proportional_on_mixes": [round(float(m @ r), 4) for m, r in zip(mixes, others, strict=True)],
                "even_by_task": even.round(4).tolist(),
                "even_figures": found["figures"][0].round(4).tolist(),
                "seconds": round(found["seconds"], 1),
            }
            result["methods"][name] = row
            print(f"{name:26s} {row}", flush=True)
            if arguments.out:
                arguments.out.parent.mkdir(parents=True, exist_ok=True)
                arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
