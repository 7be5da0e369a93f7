"""How fast experts merge into a live dense model, next to merely reading the same bytes; memory; cost against K.

All figures are ratios inside one run: a round measures every contender once, in turn. `--quick` uses a small model.
`--methods` measures what a merge costs by method instead: seconds beside the plain average's, and bytes read beside the
experts. FFNs are merged one by one, so that T5-base stands there with a quarter of its 24 FFNs; whole, it takes four
times as long. `whole matrices` is a regression solved without a basis, reading left out. With `--threads 1` seconds are
the processor's, which suits a machine that is busy.
"""

import argparse
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # where other processes run, threads that spin stall each other

import numpy as np
import torch
import transformers

import tanbr
from serving.rounds import in_turn, ratios, report
from tanbr.merge.gram_matrices import FOLDER, solved, write_gram_matrices
from tanbr.merge.methods import METHODS
from tanbr.moe.families.t5 import T5MoeConfig, T5MoeForConditionalGeneration

THREADS = 2
FULL = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "num_experts": 8}
QUICK = {"d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 4, "num_heads": 4, "num_experts": 8}
MINILM = {"d_model": 384, "d_kv": 64, "d_ff": 1536, "num_layers": 3, "num_heads": 6, "num_experts": 8}  # 6 FFNs in all
SIZES = {"MiniLM": MINILM, "T5-base": FULL | {"num_layers": 3}}  # of `--methods`: 6 FFNs of T5-base's 24
LINE = {"vocab_size": 256, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 1, "num_heads": 8, "num_experts": 8}


def random_checkpoint(folder: Path, size: dict[str, int]) -> Path:
    """Write a T5-MoE with random weights."""
    T5MoeForConditionalGeneration(T5MoeConfig(**size, decoder_start_token_id=0)).save_pretrained(folder)
    return folder


class Contenders:
    """Ways to read, and ways to merge, the experts of one checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.moe = tanbr.open(folder)
        self.dense = self.moe.dense()
        K = self.moe.num_experts
        self.blend = np.random.default_rng(0).dirichlet(np.full(K, 5.0))
        self.weights = torch.tensor(self.blend, dtype=torch.float32)
        pieces = self.moe.plan.blended
        self.rows = [self.moe.checkpoint.blocks(piece.blocks, int(np.prod(piece.shape))) for piece in pieces]  # (K, n)
        self.outs = [torch.empty(rows.shape[1]) for rows in self.rows]
        self.gigabytes = sum(rows.numel() * rows.element_size() for rows in self.rows) / 1e9
        self.ones = torch.ones(max(rows.shape[1] for rows in self.rows))
        self.pool = ThreadPoolExecutor(THREADS)

    def read_torch(self) -> None:
        """Sum with torch, two threads inside each sum."""
        for rows in self.rows:
            rows.sum()

    def read_numpy(self) -> None:
        """Sum with NumPy, one tensor per thread."""
        list(self.pool.map(lambda rows: rows.numpy().sum(), self.rows))

    def read_product(self) -> None:
        """Sum with a matrix-vector product: every expert's total, K streams at a time."""
        for rows in self.rows:
            torch.mv(rows, self.ones[: rows.shape[1]])

    def read_columns(self) -> None:
        """Sum over experts as a merge does, into a scratch that stays in the cache: all of the reading, no writing."""
        scratch, step = self.outs[0], 1 << 16
        for rows in self.rows:
            for start in range(0, rows.shape[1], step):
                part = rows[:, start : start + step]
                torch.mv(part.T, self.weights, out=scratch[: part.shape[1]])

    def merge(self) -> None:
        """Merge into the live model."""
        self.moe.merge_into(self.dense, self.blend)

    def axpy(self) -> None:
        """Merge with the plain loop: out += x_k · expert k."""
        for rows, out in zip(self.rows, self.outs, strict=True):
            torch.mul(rows[0], float(self.weights[0]), out=out)
            for row, weight in zip(rows[1:], self.weights[1:].tolist(), strict=True):
                out.add_(row, alpha=weight)

    def mergekit(self) -> None:
        """Merge with the kernel of mergekit's linear method, given the same mapped tensors."""
        from mergekit.merge_methods.base import TensorBatch
        from mergekit.merge_methods.linear import linear_merge

        weight = self.weights[None]
        for rows in self.rows:
            linear_merge.implementation(TensorBatch(tuple(row[None] for row in rows)), weight=weight)


READERS = ("read_torch", "read_numpy", "read_product", "read_columns")


def rates(folder: Path, *, repeats: int) -> dict[str, Any]:
    """GB/s of every contender over interleaved rounds, and each as a share of the fastest reader."""
    contenders = Contenders(folder)
    names = [*READERS, "merge", "axpy"] + (["mergekit"] if importlib.util.find_spec("mergekit") else [])
    seconds = in_turn({name: getattr(contenders, name) for name in names}, rounds=repeats)
    fastest = min(READERS, key=lambda name: min(seconds[name]))
    return {
        "gigabytes_read": contenders.gigabytes,
        "parameters": sum(spec.numel for spec in contenders.moe.checkpoint.specs.values()),
        "fastest_reader": fastest,
        "contenders": {
            name: {
                **_spread([contenders.gigabytes / value for value in times], "gb_per_s"),
                **_spread([a / b for a, b in zip(seconds[fastest], times, strict=True)], "of_fastest_reader"),
                "median_s": statistics.median(times),
                "best_gb_per_s": contenders.gigabytes / min(times),  # of all rounds: the least disturbed
                "best_of_best_reader": min(seconds[fastest]) / min(times),
            }
            for name, times in seconds.items()
        },
    }


def _spread(values: list[float], name: str) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {name: middle, f"{name}_low": low, f"{name}_high": high}


def memory(folder: Path) -> dict[str, Any]:
    """Measure a process of its own: anonymous memory before, with the dense model, and at the peak of ten merges."""
    command = [sys.executable, __file__, "--memory-of", str(folder)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))


def _memory_of(folder: Path) -> dict[str, float]:
    moe = tanbr.open(folder)
    K = moe.num_experts
    start = anonymous()
    peak, stop = [start], threading.Event()

    def watch() -> None:
        while not stop.wait(0.001):
            peak.append(anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    dense = moe.dense()
    size = sum(p.numel() * p.element_size() for p in dense.parameters())
    rng = np.random.default_rng(0)
    for _ in range(10):
        moe.merge_into(dense, rng.dirichlet(np.ones(K)))
    stop.set()
    watcher.join()
    return {"dense_bytes": size, "peak_bytes": max(peak) - start, "above_dense": (max(peak) - start) / size - 1}


def anonymous() -> int:
    """Bytes that this process holds beyond mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this measurement needs Linux")


def lines(work: Path, *, quick: bool, repeats: int) -> dict[str, Any]:
    """Seconds of a merge against K at one size, and against the number of layers at K = 8, with straight lines."""
    experts = [2, 4, 8] if quick else [2, 4, 8, 16, 32, 64]
    layers = [1, 2, 4] if quick else [1, 2, 4, 8, 16]
    cases = [("experts", {"num_experts": K}) for K in experts] + [("layers", {"num_layers": n}) for n in layers]
    result: dict[str, Any] = {"experts": [], "layers": []}
    for number, (axis, change) in enumerate(cases):
        folder = random_checkpoint(work / f"line{number}", LINE | change)
        contenders = Contenders(folder)
        times = in_turn({"merge": contenders.merge}, rounds=repeats)["merge"]
        x = next(iter(change.values()))
        result[axis].append({"at": x, "gigabytes": contenders.gigabytes, **_spread(times, "seconds")})
        del contenders
        shutil.rmtree(folder)
    for axis in ("experts", "layers"):
        points = result[axis]
        slope, offset, fit = _line([p["at"] for p in points], [p["seconds"] for p in points])
        result[f"{axis}_line"] = {"slope_s": slope, "offset_s": offset, "r_squared": fit}
    return result


def _line(x: list[float], y: list[float]) -> tuple[float, float, float]:
    slope, offset = np.polyfit(x, y, 1)
    residual = np.asarray(y) - (slope * np.asarray(x) + offset)
    return float(slope), float(offset), float(1 - residual.var() / np.var(y))


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


def methods(folder: Path, *, repeats: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Merge one blend by every method, in turn; the first merge of a method stands apart."""
    beside, whole = add_matrices(folder)
    opened = {name: tanbr.open(folder, method=name) for name in METHODS}
    model = opened["average"].dense()
    blend = np.random.default_rng(0).dirichlet(np.full(8, 5.0))
    contenders = {name: partial(moe.merge_into, model, blend) for name, moe in opened.items()}
    seconds = in_turn(contenders | {"whole matrices": whole}, rounds=repeats + 1, warm=0, clock=clock)
    return {
        "expert_bytes": sum(int(np.prod(piece.shape)) * 4 * 8 for piece in opened["average"].plan.blended),
        "methods": {
            name: {
                "seconds": statistics.median(times[1:]),
                "first_seconds": times[0],
                "of_average": ratios(times[1:], seconds["average"][1:]),
                "bytes_beside": beside.get(name, 0),
            }
            for name, times in seconds.items()
        },
    }


def main() -> None:
    """Measure, print and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small model, under a minute")
    parser.add_argument("--methods", action="store_true", help="what a merge costs by method")
    parser.add_argument("--size", choices=list(SIZES), default=None, help="of --methods: one size only")
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--out", type=Path, default=None, help="JSON file")
    parser.add_argument("--memory-of", type=Path, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.utils.logging.set_verbosity_error()
    if arguments.memory_of:
        print(json.dumps(_memory_of(arguments.memory_of)))
        return
    repeats = arguments.repeats or (5 if arguments.quick else 15)
    figures: dict[str, Any] = {
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "threads": arguments.threads,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "repeats": repeats,
    }
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        if arguments.methods:
            clock = time.process_time if arguments.threads == 1 else time.perf_counter
            for title, size in ({"quick": QUICK} if arguments.quick else SIZES).items():
                if arguments.size in (None, title):
                    folder = random_checkpoint(work / title, size)
                    figures[title] = methods(folder, repeats=repeats, clock=clock)
                    shutil.rmtree(folder)
        else:
            size = QUICK if arguments.quick else FULL
            folder = random_checkpoint(work / "moe", size)
            figures |= {"size": size, "rates": rates(folder, repeats=repeats), "memory": memory(folder)}
            shutil.rmtree(folder)
            figures["lines"] = lines(work, quick=arguments.quick, repeats=repeats)
    report(figures, arguments.out)


if __name__ == "__main__":
    main()
