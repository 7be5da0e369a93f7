"""What merge methods earn on a real model: the reward of the even blend, and of blends in proportion to a few mixes.

Every method merges the same blends of one checkpoint and answers the same rows: GLUE's dev, or the generated tasks of
an embedded model. A seed is other rows and other mixes. The Gram matrices that the regressions need are measured on
held-back rows, in a scratch folder beside links to the checkpoint's files.
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
from tanbr.lab.answers import model_for
from tanbr.lab.corpus import Corpus, generated, of_data
from tanbr.lab.rivals.probes import probes_of
from tanbr.lab.rivals.regmean import measure
from tanbr.lab.survey import survey
from tanbr.lab.task_figures import own_experts
from tanbr.merge.methods import METHODS
from tanbr.moe.embedded import path as embedded

MEASURED = ("regression", "regmeanpp")  # methods that need Gram matrices


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


def with_matrices(folder: Path, corpus: Corpus, *, rows: int, methods: list[str]) -> tuple[int, ...]:
    """Measure the Gram matrices that the methods need, and find each task's own expert."""
    moe = tanbr.open(folder)
    own = own_experts(moe, [task.name for task in corpus.tasks])
    wanted = {name.partition(":")[0] for name in methods}
    for merged, name in enumerate(MEASURED):
        if name in wanted:
            probes = probes_of(moe, corpus.first_held(rows), space=corpus.space, own=own)
            measure(moe, probes, rows=rows, merged=bool(merged))
    return own


def of_seed(
    seed: int, folder: Path, corpus: Corpus, own: tuple[int, ...], options: argparse.Namespace
) -> dict[str, Any]:
    """Measure all methods on one seed's rows and mixes."""
    V, K, count = len(corpus.tasks), tanbr.open(folder).num_experts, options.rows
    # Rows of the held part that Gram matrices have seen are left alone; those of the stream nobody has seen.
    part, begin = (corpus.held, options.grams) if options.held else (corpus.stream, 0)
    rows = {task: of_task[begin + seed * count : begin + (seed + 1) * count] for task, of_task in part.items()}
    if not all(rows.values()):
        raise SystemExit(f"seed {seed} has no rows left; ask for fewer rows or seeds")
    mixes = np.random.default_rng(seed).dirichlet(np.full(V, options.alpha), options.mixes)  # (n, V)
    proportional = np.zeros((len(mixes), K))
    proportional[:, list(own)] = mixes
    blends = np.array([np.full(K, 1 / K), *proportional])
    alone = rewards_of("average", folder, corpus, rows, np.eye(K))["rewards"]
    best = np.array([alone[k, v] for v, k in enumerate(own)])
    result: dict[str, Any] = {
        "rows_a_task": {task: len(of_task) for task, of_task in rows.items()},
        "mixes": mixes.round(4).tolist(),
        "own_expert": {"even": float(best.mean()), "mixes": (mixes @ best).round(4).tolist()},
        "methods": {},
    }
    print(f"seed {seed}: {'own expert, told the task':30s} {result['own_expert']}", flush=True)
    for name in options.methods.split(","):
        found = rewards_of(
            name + (f":base={options.ancestor}" if options.ancestor else ""), folder, corpus, rows, blends
        )
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
        print(f"seed {seed}: {name:30s} {row}", flush=True)
    return result


def summary(seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard error over seeds, of the three figures of every method."""

    def spread(values: list[float]) -> dict[str, float]:
        found = {"mean": round(float(np.mean(values)), 4)}
        if len(values) > 1:
            found["error"] = round(float(np.std(values, ddof=1)) / len(values) ** 0.5, 4)
        return found

    kinds = ("even", "even_blend_on_mixes", "proportional_on_mixes")
    names = seeds[0]["methods"]
    found = {
        name: {kind: spread([float(np.mean(seed["methods"][name][kind])) for seed in seeds]) for kind in kinds}
        for name in names
    }
    own = {kind: spread([float(np.mean(seed["own_expert"][kind])) for seed in seeds]) for kind in ("even", "mixes")}
    return {"own expert": own, **found}


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", help="folder of an MoE checkpoint; `bert` or `t5` for an embedded one")
    parser.add_argument("--data", type=Path, default=None, help="GLUE's folder; the generated tasks if left out")
    parser.add_argument("--rows", type=int, default=100, help="rows of every task")
    parser.add_argument("--grams", type=int, default=64, help="held rows of every task behind the Gram matrices")
    parser.add_argument("--mixes", type=int, default=3, help="mixes of a seed beside the even one")
    parser.add_argument("--alpha", type=float, default=0.3, help="of the Dirichlet that mixes are drawn from")
    parser.add_argument("--seeds", type=int, default=1, help="draws of rows and mixes")
    parser.add_argument("--held", action="store_true", help="held rows, for choosing settings, instead of dev or test")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--ancestor", type=Path, default=None, help="the experts' dense ancestor, as the methods' base")
    parser.add_argument("--out", type=Path, default=None, help="JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    corpus = generated() if options.data is None else of_data(options.data, pool=options.rows * options.seeds)
    checkpoint = embedded(options.checkpoint) if options.checkpoint in ("bert", "t5") else Path(options.checkpoint)
    with tempfile.TemporaryDirectory() as scratch:
        folder = linked(checkpoint, Path(scratch) / "moe")
        own = with_matrices(folder, corpus, rows=options.grams, methods=options.methods.split(","))
        words = [word.rsplit("/", 1)[-1] if word.startswith("/") else word for word in sys.argv[1:]]
        result: dict[str, Any] = {
            "command": " ".join(["python", "benchmarks/method_rewards.py", *words]),
            "model_sha256": tanbr.open(folder).fingerprint,
            "seeds": [],
        }
        for seed in range(options.seeds):
            result["seeds"].append(of_seed(seed, folder, corpus, own, options))
            result["summary"] = summary(result["seeds"])
            if options.out:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(result, indent=1) + "\n")
    for name, row in result["summary"].items():
        print(f"{name:30s}", "  ".join(f"{kind} {of}" for kind, of in row.items()))


if __name__ == "__main__":
    main()
