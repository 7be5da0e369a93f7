"""How far a merge is from the expert that has most of the blend, by method: what uneven blends lose on the way.

Over all weights that are blended, W₁ the expert with most of the weight, W₀ the mean of all:

    distance  ‖W(x) − W₁‖ / ‖W₁ − W₀‖     the average's is (1 − x₁) K / (K − 1), where the others share the rest
    length    ‖W(x) − W₀‖ / ‖W₁ − W₀‖     1 is as far from the mean as the expert itself
    trimmed   the part of distance² that lies where TIES, with its default density, trims W₁ away
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tanbr
from tanbr.moe.embedded import path as embedded
from tanbr.types import FloatArray

DENSITY = 0.5  # of TIES
METHODS = (
    "average,ties,ties:normalise=true,ties:density=1:normalise=true,estimated-regression,"
    "estimated-regression:ridge=0.01"
)


def nearness(folder: Path, method: str, blend: FloatArray, first: int) -> dict[str, float]:
    """Compare a merge with the expert `first`, in float64."""
    average = tanbr.open(folder)
    merged = dict(tanbr.open(folder, method=method).tensors(blend, changing=True))
    own = dict(average.tensors(np.eye(average.num_experts)[first], changing=True))
    sums = np.zeros(4)
    for name, mean in average.tensors(None, changing=True):
        base, expert, result = (one.flatten().double() for one in (mean, own[name], merged[name]))
        sizes = (expert - base).abs()
        trimmed = sizes < sizes.sort().values[-max(1, int(DENSITY * len(sizes)))]
        apart = (result - expert).square()
        parts = (apart, (result - base).square(), apart[trimmed], (expert - base).square())
        sums += [float(part.sum()) for part in parts]
    distance, length, trimmed_part, unit = sums
    return {
        "distance": round((distance / unit) ** 0.5, 3),
        "length": round((length / unit) ** 0.5, 3),
        "trimmed": round(trimmed_part / distance, 3) if distance else 0.0,
    }


def main() -> None:
    """Measure with every expert in turn as the first, print means, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", help="folder of an MoE checkpoint; `bert` or `t5` for an embedded one")
    parser.add_argument("--most", type=float, default=0.79, help="weight of the first expert; others share the rest")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--out", type=Path, default=None, help="JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = embedded(options.checkpoint) if options.checkpoint in ("bert", "t5") else Path(options.checkpoint)
    K = tanbr.open(folder).num_experts
    words = [word.rsplit("/", 1)[-1] if word.startswith("/") else word for word in sys.argv[1:]]
    result: dict[str, Any] = {"command": " ".join(["python", "benchmarks/nearness.py", *words]), "methods": {}}
    for method in options.methods.split(","):
        rows = []
        for first in range(K):
            blend = np.full(K, (1 - options.most) / (K - 1))
            blend[first] = options.most
            rows.append(nearness(folder, method, blend, first))
        found = {
            what: {"mean": round(float(np.mean(of)), 3), "low": min(of), "high": max(of)}
            for what in rows[0]
            for of in [[row[what] for row in rows]]
        }
        result["methods"][method] = found
        print(f"{method:36s}", "  ".join(f"{what} {of['mean']:.2f}" for what, of in found.items()), flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
