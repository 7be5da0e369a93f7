"""Memory: beside plain dense serving, and over a soak."""

import asyncio
import itertools
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from serving import processes
from serving.client import after, ask, at, classify, drive
from serving.models import K, checkpoint, texts
from tanbr.merge import open as open_moe

MB = 1 << 20


def memory(size: str, work: Path, _before: object, *, threads: int, swaps: int) -> dict[str, Any]:
    """Resident memory of the server after load and swaps, over that of plain dense serving plus the spare buffer."""
    folder = checkpoint(size, work)
    bodies = itertools.cycle([classify(texts(32, seed=seed)) for seed in range(4)])
    rng = np.random.default_rng(0)
    measured = {}
    pieces = open_moe(folder).plan.blended
    spare = sum(4 * math.prod(piece.shape) for piece in pieces) / MB
    for name in ("plain", "tanbr"):
        serve: Any = processes.tanbr if name == "tanbr" else partial(processes.rival, name)
        with serve(folder, work, threads=threads) as (port, pid):
            asyncio.run(drive(port, bodies, connections=2, until=after(8)))
            if name == "tanbr":
                for _ in range(swaps):
                    body = {"blend": rng.dirichlet(np.ones(K)).tolist()}
                    assert ask(port, "POST", "/v1/admin/pin", body, token=processes.TOKEN)[0] == 200
            asyncio.run(drive(port, bodies, connections=2, until=after(8)))
            measured[name] = processes.resident(pid)
    expected = {kind: measured["plain"][kind] + spare for kind in ("rss", "anonymous")}
    return {
        "size": size,
        "plain_mb": measured["plain"],
        "tanbr_mb": measured["tanbr"],
        "spare_mb": spare,
        "whole_moe_mb": (folder / "model.safetensors").stat().st_size / MB,
        "over_plain_and_spare": {kind: measured["tanbr"][kind] / expected[kind] for kind in expected},
    }


def soak(work: Path, *, threads: int, minutes: float) -> dict[str, Any]:
    """Resident memory of a server with the embedded model, its slots turning, under load: start, end and slope."""
    bodies = itertools.cycle([classify([text]) for text in texts(64)])
    samples: list[tuple[float, float]] = []
    requests = failed = 0
    with processes.tanbr(None, work, threads=threads, slot_requests=500, slot_seconds=3600) as (port, pid):
        started = time.perf_counter()
        while (minute := (time.perf_counter() - started) / 60) < minutes:
            ends = time.perf_counter() + min(10.0, minutes * 60 / 12)
            load = asyncio.run(drive(port, bodies, connections=4, rate=150, until=at(ends)))
            requests, failed = requests + len(load.seconds), failed + len(load.failed)
            samples.append((minute, processes.resident(pid)["rss"]))
        slot = ask(port, "GET", "/v1/state")[1]["slot"]
    settled = [sample for sample in samples if sample[0] >= minutes / 4]  # caches fill in the first quarter
    minutes_of, mb = np.array(settled).T
    slope = float(np.polyfit(minutes_of, mb, 1)[0]) if len(settled) > 2 else float("nan")
    return {
        "minutes": minutes,
        "requests": requests,
        "failed": failed,
        "slots": slot,
        "rss_mb": [round(value, 1) for _, value in samples],
        "mb_per_hour_after_the_first_quarter": slope * 60,
        "last_over_first_quarter": mb[-1] / mb[0],
    }
