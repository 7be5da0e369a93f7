"""How much of each expert is in a merge, whatever the method: the coefficients c of W(x) − W₀ ≈ Σ_k c_k (W_k − W₀).

Least squares over all weights that are blended, W₀ the experts' mean. The average has c = x exactly; a method whose c
does not follow the blend serves experts that nobody asked for. `left` is the part of ‖W(x) − W₀‖ that is no sum of
experts.
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


def coefficients(folder: Path, method: str, blend: np.ndarray) -> dict[str, Any]:
    """Solve for c (K,), which sums to 1 as the mean of the differences is 0: the least such change from the blend."""
    average = tanbr.open(folder)
    K = average.num_experts
    gram, products, norm = np.zeros((K, K)), np.zeros(K), 0.0
    merged = dict(tanbr.open(folder, method=method).tensors(blend, changing=True))
    alone = [dict(average.tensors(np.eye(K)[k], changing=True)) for k in range(K)]
    for name, tensor in merged.items():
        experts = torch.stack([one[name].flatten() for one in alone]).double()  # (K, n)
        base = experts.mean(dim=0)
        differences, change = experts - base, tensor.flatten().double() - base
        gram += (differences @ differences.T).numpy()
        products += (differences @ change).numpy()
        norm += float(change @ change)
    found = np.linalg.pinv(gram, hermitian=True) @ products  # the least c; adding a constant to all changes nothing
    explained = float(found @ gram @ found)
    found += (1 - found.sum()) / K
    return {"coefficients": found.round(4).tolist(), "left": round(max(0.0, 1 - explained / norm) ** 0.5, 4)}


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", help="folder of an MoE checkpoint; `bert` or `t5` for an embedded one")
    parser.add_argument("--most", type=float, default=0.79, help="weight of the first expert; others share the rest")
    parser.add_argument("--methods", default="average,ties,ties:normalise=false,estimated-regression,dare,slerp")
    parser.add_argument("--out", type=Path, default=None, help="JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = embedded(options.checkpoint) if options.checkpoint in ("bert", "t5") else Path(options.checkpoint)
    K = tanbr.open(folder).num_experts
    blend = np.full(K, (1 - options.most) / (K - 1))
    blend[0] = options.most
    words = [word.rsplit("/", 1)[-1] if word.startswith("/") else word for word in sys.argv[1:]]
    command = " ".join(["python", "benchmarks/effective_weights.py", *words])
    result: dict[str, Any] = {"command": command, "blend": blend.round(4).tolist(), "methods": {}}
    for method in options.methods.split(","):
        found = coefficients(folder, method, blend)
        result["methods"][method] = found
        own, *others = found["coefficients"]
        print(f"{method:36s} first {own:.2f}, others {np.mean(others):.3f} each, left {found['left']:.2f}", flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
