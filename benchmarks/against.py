"""This checkout against another one, in one run: throughput, latency and merge time of both servers, as ratios.

`git worktree add ../before COMMIT`, then `python benchmarks/against.py ../before`. Both serve the same model of random
weights in turn, round by round; a ratio above 1 means that this checkout is faster. The other one must run with the
packages of this environment.
"""

import argparse
import asyncio
import itertools
import os
import platform
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of this process, the client

import numpy as np
import torch

from serving import processes
from serving.client import after, ask, classify, drive
from serving.models import K, checkpoint, texts
from serving.rounds import ratios, report, spread
from serving.speed import BATCH, saturated, singles

HERE = Path(__file__).parent.parent


def server(tree: Path, folder: Path, work: Path, *, threads: int, name: str) -> Any:
    """Run the server of a checkout: a context manager that gives its port."""
    config = work / f"{name}.toml"
    config.write_text(f"[serve]\nslot_seconds = 3600\nthreads = {threads}\nmerge_share = 1.0\nqueue = 4096\n")
    command = ["-c", "from tanbr.cli import main; main()", "serve", str(folder), "--force"]
    command += ["--config", str(config), "--state", str(work / name)]
    return processes.started(command, work / f"{name}.log", environment={"PYTHONPATH": str(tree / "src")})


def latency(port: int, requests: int) -> float:
    """Median seconds of one text at a time."""
    bodies = itertools.cycle([classify([text]) for text in texts(64)])
    return float(np.median(asyncio.run(drive(port, bodies, connections=1, until=after(requests))).seconds))


def merge(port: int, seed: int) -> float:
    """Seconds of one merge, by the server's own clock."""
    blend = np.random.default_rng(seed).dirichlet(np.ones(K))
    status, said = ask(port, "POST", "/v1/admin/pin", {"blend": blend.tolist()}, token=processes.TOKEN)
    if status != 200:
        raise RuntimeError(f"a pin failed: {said}")
    return float(ask(port, "GET", "/v1/state")[1]["last_merge_seconds"])


def measure(other: Path, work: Path, *, size: str, rounds: int, threads: int) -> dict[str, Any]:
    """Ratios of this checkout over the other, round by round."""
    folder = checkpoint(size, work)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ("batches", "singles", "latency", "merge")}
    with ExitStack() as stack:
        ports = [
            stack.enter_context(server(tree, folder, work, threads=threads, name=name))[0]
            for tree, name in ((HERE, "this"), (other, "other"))
        ]
        for round_ in range(rounds + 1):  # the first is a warm-up
            order = ports if round_ % 2 else ports[::-1]
            now = {
                port: (
                    1 / saturated(port, 16),
                    1 / singles(port, 8),
                    latency(port, 40),
                    float(np.median([merge(port, 10 * round_ + i) for i in range(5)])),
                )
                for port in order
            }
            for name, this, that in zip(found, now[ports[0]], now[ports[1]], strict=True):
                found[name] += [(this, that)] if round_ else []
    return {
        name: {
            "ratio": ratios([that for _, that in pairs], [this for this, _ in pairs]),
            "this": spread([this if name in ("latency", "merge") else 1 / this for this, _ in pairs]),
            "other": spread([that if name in ("latency", "merge") else 1 / that for _, that in pairs]),
        }
        for name, pairs in found.items()
    }


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, nargs="?", default=HERE, help="folder of the other checkout, or this one")
    parser.add_argument("--quick", action="store_true", help="the tiny model, two rounds")
    parser.add_argument("--size", default="minilm", choices=["quick", "minilm", "base"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    if args.quick:
        args.size, args.rounds = "quick", 2
    with tempfile.TemporaryDirectory() as work:
        found = measure(args.other.resolve(), Path(work), size=args.size, rounds=args.rounds, threads=args.threads)
    found |= {
        "command": f"python benchmarks/against.py CHECKOUT --size {args.size} --rounds {args.rounds}",
        "size": args.size, "batch": BATCH, "rounds": args.rounds, "threads": args.threads,
        "machine": platform.machine(), "torch": torch.__version__,
    }  # fmt: skip
    report(found, args.out)


if __name__ == "__main__":
    main()
