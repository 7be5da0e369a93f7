"""What a merge costs by method: seconds, and bytes read beside the experts, at two sizes.

All figures are of one run, round after round in turn, beside the plain average's. Weights are random: costs do not
depend on them. FFNs are merged one by one, so that T5-base stands there with a quarter of its 24 FFNs; whole, it takes
four times as long. `whole matrices` is a regression solved without a basis, reading left out. `--quick` uses a small
model. With `--threads 1` seconds are the processor's, which suits a machine that is busy.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # where other processes run, threads that spin stall each other

import numpy as np
import torch
import transformers

import tanbr
from merge import FULL, QUICK, random_checkpoint
from tanbr.merge.gram_matrices import FOLDER, solved, write_gram_matrices
from tanbr.merge.methods import METHODS

THREADS = 2
QUARTER = FULL | {"num_layers": 3}  # 6 FFNs of T5-base's 24
MINILM = {"d_model": 384, "d_kv": 64, "d_ff": 1536, "num_layers": 3, "num_heads": 6, "num_experts": 8}  # 6 FFNs in all


def add_matrices(folder: Path) -> tuple[dict[str, int], Callable[[], Any]]:
    """Write random Gram matrices beside the experts: their bytes, and the same systems solved with whole matrices."""
    moe = tanbr.open(folder)
    layers = {p.target.removesuffix(".weight"): torch.zeros(p.shape) for p in moe.plan.blended if len(p.shape) == 2}
    rng = torch.Generator().manual_seed(0)
    last: dict[str, Any] = {}

    def pairs() -> Any:
        for _ in range(moe.num_experts):
            for name, average in layers.items():
                rows, columns = average.shape
                factor = torch.randn(columns, 64, generator=rng)
                last[name] = factor @ factor.T / 64 + torch.eye(columns), torch.randn(columns, rows, generator=rng)
                yield last[name]

    out = write_gram_matrices(
        folder / FOLDER, layers, pairs(), experts=moe.num_experts, fingerprint=moe.fingerprint, rows=64
    )
    size = sum(file.stat().st_size for file in out.iterdir())
    return {"regression": size}, lambda: [solved(a, b, layers[name]) for name, (a, b) in last.items()]


def measure(folder: Path, *, repeats: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Merge one blend by every method, in turn."""
    beside, whole = add_matrices(folder)
    opened = {name: tanbr.open(folder, method=name) for name in METHODS}
    model = opened["average"].dense()
    blend = np.random.default_rng(0).dirichlet(np.full(8, 5.0))
    contenders = {name: partial(moe.merge_into, model, blend) for name, moe in opened.items()} | {
        "whole matrices": whole
    }
    first: dict[str, float] = {}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for round_ in range(repeats + 1):
        for name, merge in contenders.items():
            start = clock()
            merge()
            spent = clock() - start
            if round_:
                seconds[name].append(spent)
            else:
                first[name] = spent
    average = statistics.median(seconds["average"])
    experts = sum(int(np.prod(piece.shape)) * 4 * 8 for piece in opened["average"].plan.blended)
    return {
        "expert_bytes": experts,
        "methods": {
            name: {
                "seconds": statistics.median(times),
                "first_seconds": first[name],
                "of_average": statistics.median(times) / average,
                "of_average_range": [edge / average for edge in (min(times), max(times))],
                "bytes_beside": beside.get(name, 0),
            }
            for name, times in seconds.items()
        },
    }


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small model")
    parser.add_argument("--size", choices=["MiniLM", "T5-base"], default=None, help="one size only")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--out", type=Path, default=None, help="JSON file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.utils.logging.set_verbosity_error()
    sizes = {"quick": QUICK} if arguments.quick else {"MiniLM": MINILM, "T5-base": QUARTER}
    sizes = {title: size for title, size in sizes.items() if arguments.size in (None, title)}
    figures: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/merge_methods.py", *sys.argv[1:]]),
        "threads": arguments.threads,
    }
    for title, size in sizes.items():
        with tempfile.TemporaryDirectory() as scratch:
            clock = time.process_time if arguments.threads == 1 else time.perf_counter
            folder = random_checkpoint(Path(scratch) / "moe", size)
            figures[title] = measure(folder, repeats=arguments.repeats, clock=clock)
        print(f"{title}: {figures[title]['expert_bytes'] / 1e6:.0f} MB of experts")
        for name, row in figures[title]["methods"].items():
            print(
                f"  {name:22s} {row['seconds']:8.3f} s  ×{row['of_average']:<8.1f} first {row['first_seconds']:8.3f} s"
                f"  {row['bytes_beside'] / 1e6:6.0f} MB beside",
                flush=True,
            )
        if arguments.out:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
