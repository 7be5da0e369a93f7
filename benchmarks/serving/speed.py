"""Throughput, latency, and latency while blends are swapped."""

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from serving import processes
from serving.client import Connection, Load, after, ask, at, classify, drive, request
from serving.models import K, checkpoint, task_texts, texts, with_tasks

BATCH = 32


def spread(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def throughput(size: str, work: Path, *, threads: int, rounds: int, batches: int) -> dict[str, Any]:
    """Texts per second of every way of serving, over those of the bare model on all cores in the same round.

    In each round all servers run in turn, so that tanbr can be compared with each of them; `of_best_rival` is its share
    of the fastest one, round by round.
    """
    folder = checkpoint(size, work)
    result: dict[str, Any] = {"size": size, "batch": BATCH, "batches": batches, "rounds": rounds, "threads": threads}
    mixed = [classify(texts(BATCH, seed=seed, mixed=True)) for seed in range(8)]
    loads: dict[str, Callable[[int], float]] = {
        "requests of 32": lambda port: saturated(port, batches),
        "requests of 32, mixed lengths": lambda port: saturated(port, batches, mixed),
        "single texts": lambda port: singles(port, batches),
    }
    with ExitStack() as stack:
        model = stack.enter_context(processes.bare(folder, work, threads=threads))
        ports = {
            name: stack.enter_context(server)[0] for name, server in servers(folder, work, threads=threads).items()
        }
        rates: dict[str, dict[str, list[float]]] = {load: {name: [] for name in ports} for load in loads}
        bare: list[float] = []
        for round_ in range(rounds + 1):  # the first is a warm-up
            alone = BATCH * batches / sum(model(BATCH, batches))
            bare += [alone] if round_ else []
            for load, measure in loads.items():
                for name, port in ports.items():
                    rate = measure(port) / alone
                    rates[load][name] += [rate] if round_ else []
    for load, of in rates.items():
        best = [
            max(values) for values in zip(*(of[name] for name in of if name != "tanbr"), [1.0] * rounds, strict=True)
        ]
        result[load] = {name: spread(values) for name, values in of.items()}
        result[load]["of_best_rival"] = spread([mine / other for mine, other in zip(of["tanbr"], best, strict=True)])
    result["bare_texts_per_second"] = spread(bare)
    return result


def panel(size: str, work: Path, *, threads: int, rounds: int, batches: int, most: int = 3) -> dict[str, Any]:
    """Texts per second of G models side by side, over those of one model in the same round; how the texts split."""
    folder = with_tasks(size, work)
    result: dict[str, Any] = {"size": size, "batch": BATCH, "batches": batches, "rounds": rounds, "threads": threads}
    whole = [classify(task_texts(BATCH, seed=seed)) for seed in range(8)]
    single = [classify([text]) for text in task_texts(64)]
    with ExitStack() as stack:
        ports = {G: stack.enter_context(processes.tanbr(folder, work, models=G))[0] for G in range(1, most + 1)}
        rates: dict[int, list[tuple[float, float]]] = {G: [] for G in ports}
        for round_ in range(rounds + 1):  # the first is a warm-up
            for G, port in ports.items():
                rate = saturated(port, batches, whole), singles(port, batches, single)
                rates[G] += [rate] if round_ else []
        for G, port in ports.items():
            result[f"G = {G}"] = {
                "of_one_model": spread([now[0] / one[0] for now, one in zip(rates[G], rates[1], strict=True)]),
                "of_one_model_single_texts": spread(
                    [now[1] / one[1] for now, one in zip(rates[G], rates[1], strict=True)]
                ),
                "requests_by_model": [model["requests"] for model in ask(port, "GET", "/v1/state")[1]["models"]],
            }
        result["texts_per_second"] = spread([rate[0] for rate in rates[1]])
        result["texts_per_second_single_texts"] = spread([rate[1] for rate in rates[1]])
    return result


def servers(folder: Path, work: Path, *, threads: int) -> dict[str, Any]:
    """Every way of serving the same dense model; each is a context manager of (port, pid).

    The plain handler answers each request on a thread of its own, LitServe in as many processes as it is told; both are
    tried with one core and with all for a batch. tanbr finds out by itself.
    """
    found: dict[str, Any] = {"tanbr": processes.tanbr(folder, work)}
    for kind in ("plain", "litserve"):
        for each in dict.fromkeys((1, threads)):
            found[f"{kind}, {each} threads"] = processes.rival(kind, folder, work, threads=each)
    return found


def saturated(port: int, batches: int, bodies: list[bytes] | None = None) -> float:
    """Requests of a whole batch each, on four connections; texts per second."""
    sent = itertools.cycle(bodies or [classify(texts(BATCH, seed=seed)) for seed in range(8)])
    load = asyncio.run(drive(port, sent, connections=4, until=after(batches)))
    _check(load)
    return BATCH * len(load.seconds) / load.took


def singles(port: int, batches: int, bodies: list[bytes] | None = None) -> float:
    """Requests of one text each, on as many connections as two batches have texts; texts per second."""
    sent = itertools.cycle(bodies or [classify([text]) for text in texts(64)])
    load = asyncio.run(drive(port, sent, connections=2 * BATCH, until=after(BATCH * batches)))
    _check(load)
    return len(load.seconds) / load.took


def _check(load: Load) -> None:
    if load.failed:
        raise RuntimeError(f"{len(load.failed)} requests failed: {load.failed[0]}")


def latency(size: str, work: Path, *, threads: int, rounds: int, requests: int) -> dict[str, Any]:
    """Latency of one text at a time, less the bare forward pass in the same round."""
    folder = checkpoint(size, work)
    result: dict[str, Any] = {"size": size, "requests": requests, "rounds": rounds, "threads": threads}
    bodies = itertools.cycle([classify([text]) for text in texts(64)])
    with processes.bare(folder, work, threads=threads) as model:
        model(1, 20)
        for name, server in servers(folder, work, threads=threads).items():
            with server as (port, _):
                asyncio.run(drive(port, bodies, connections=1, until=after(20)))
                added, share, tails, alone = [], [], [], []
                for _ in range(rounds):
                    bare = statistics.median(model(1, requests))
                    load = asyncio.run(drive(port, bodies, connections=1, until=after(requests)))
                    _check(load)
                    alone.append(bare * 1e3)
                    added.append((load.quantile(0.5) - bare) * 1e3)
                    share.append(load.quantile(0.5) / bare - 1)
                    tails.append(load.quantile(0.99) / load.quantile(0.5))
            result[name] = {"added_ms": spread(added), "added_share": spread(share), "p99_over_median": spread(tails)}
            result["bare_ms"] = spread(alone)
    return result


def swaps(size: str, work: Path, *, threads: int, rounds: int, count: int, rate_share: float = 0.4) -> dict[str, Any]:
    """99th percentile of the latency while blends are swapped without a pause between, over that without swaps."""
    folder = checkpoint(size, work)
    rng = np.random.default_rng(0)
    ratios, failed, versions, requests, merges = [], 0, 0, 0, []
    with processes.tanbr(folder, work) as (port, _):
        bodies = itertools.cycle([classify([text]) for text in texts(64)])
        load = asyncio.run(drive(port, bodies, connections=1, until=after(100)))
        rate = rate_share / load.quantile(0.5)
        for _ in range(rounds):
            started = time.perf_counter()
            during, merged = asyncio.run(_swapping(port, bodies, rate, rng, count // rounds))
            took = time.perf_counter() - started
            steady = asyncio.run(drive(port, bodies, connections=8, rate=rate, until=at(time.perf_counter() + took)))
            ratios.append(during.quantile(0.99) / steady.quantile(0.99))
            failed += len(during.failed) + len(steady.failed)
            versions += len(merged)
            requests += len(during.seconds) + len(steady.seconds)
            merges += merged
    return {
        "size": size,
        "threads": threads,
        "rounds": rounds,
        "swaps": versions,
        "requests": requests,
        "requests_per_second": rate,
        "failed": failed,
        "p99_over_steady": spread(ratios),
        "seconds_per_swap": spread(merges),
    }


async def _swapping(
    port: int, bodies: Iterator[bytes], rate: float, rng: np.random.Generator, count: int
) -> tuple[Load, list[float]]:
    """Load the server while one blend after the other is pinned; the load, and the seconds of each swap."""
    done = False
    seconds: list[float] = []

    async def swap() -> None:
        nonlocal done
        connection = Connection(port)
        for _ in range(count):
            body = {"blend": rng.dirichlet(np.ones(K)).tolist()}
            started = time.perf_counter()
            status, data = await connection.send(request("POST", "/v1/admin/pin", body, token=processes.TOKEN))
            seconds.append(time.perf_counter() - started)
            if status != 200:
                raise RuntimeError(f"a swap failed: {data!r}")
        done = True

    load, _ = await asyncio.gather(drive(port, bodies, connections=8, rate=rate, until=lambda _: done), swap())
    return load, seconds
