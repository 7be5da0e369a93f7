"""Throughput, latency, and latency while blends are swapped."""

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
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


def throughput(
    size: str,
    work: Path,
    *,
    threads: int,
    rounds: int,
    batches: int,
    within: float,
    before: dict[str, Any],
    only: Sequence[str] = (),
) -> dict[str, Any]:
    """Texts per second of every way of serving, or of those whose names start as `only` says, round by round.

    In each round the bare model and all servers run in turn, each alone on the machine, so that tanbr can be compared
    with each of them; `of_best_rival` is its share of the fastest one in the same round, and of the bare model on all
    cores if that is faster. The processor time that a server's processes took for a text is there, too: it tells more
    where the machine is not at rest. Rounds are added to those of `before`, as many as are done `within` so many
    seconds.
    """
    started, folder = time.perf_counter(), checkpoint(size, work)
    mixed = [classify(texts(BATCH, seed=seed, mixed=True)) for seed in range(8)]
    loads: dict[str, Callable[[int, int], float]] = {
        "requests of 32": saturated,
        "single texts": singles,
        "requests of 32, mixed lengths": lambda port, count: saturated(port, count, mixed),
    }
    if size == "base":  # five minutes are short for it
        del loads["requests of 32, mixed lengths"]
    rates: list[dict[str, dict[str, float]]] = list(before.get("texts_per_second", ()))
    costs: list[dict[str, dict[str, float]]] = list(before.get("processor_ms_a_text", ()))
    with ExitStack() as stack:
        model = stack.enter_context(processes.bare(folder, work, threads=threads))
        wanted = {
            name: server
            for name, server in servers(folder, work, threads=threads).items()
            if name == "tanbr" or not only or name.startswith(tuple(only))
        }
        running = dict(zip(wanted, processes.entered(stack, wanted.values()), strict=True))
        pids, took = [pid for _, pid in running.values()], 0.0
        for round_ in range(rounds + 1):  # the first is a warm-up
            if round_ and time.perf_counter() - started + took > within:
                break
            now, count = time.perf_counter(), batches if round_ else 4
            found: dict[str, dict[str, float]] = {load: {} for load in loads}
            cost: dict[str, dict[str, float]] = {load: {} for load in loads}
            for load, measure in loads.items():
                for name, (port, pid) in running.items():
                    spent = processes.processor_seconds(pid)
                    with processes.alone(pid, pids):
                        found[load][name] = measure(port, count)
                    sent = BATCH * (count + 2 * (load == "single texts"))
                    cost[load][name] = 1e3 * (processes.processor_seconds(pid) - spent) / sent
            with processes.alone(0, pids):
                alone = BATCH * 2 / sum(model(BATCH, 2))
            rates += [{load: of | {"bare": alone} for load, of in found.items()}] if round_ else []
            costs += [cost] if round_ else []
            took = max(took if round_ > 1 else 0.0, time.perf_counter() - now)
    result: dict[str, Any] = {"size": size, "batch": BATCH, "batches": batches, "rounds": len(rates)}
    for load in loads:
        result[load] = compared([one[load] for one in rates])
        cheapest = [min(value for name, value in one[load].items() if not name.startswith("tanbr")) for one in costs]
        result[load]["processor time of tanbr, of the cheapest rival's"] = spread(
            [one[load]["tanbr"] / least for one, least in zip(costs, cheapest, strict=True)]
        )
    return result | {"texts_per_second": rates, "processor_ms_a_text": costs}


def compared(rates: list[dict[str, float]]) -> dict[str, Any]:
    """Compare ways of serving round by round: each with the bare model, and each of tanbr's with the best rival."""
    names = {name: [one[name] / one["bare"] for one in rates if name in one] for one in rates for name in one}
    result: dict[str, Any] = {name: spread(values) for name, values in names.items() if name != "bare"}
    for mine in (name for name in names if name.startswith("tanbr")):
        of_best = [
            one[mine] / max(rate for name, rate in one.items() if not name.startswith("tanbr"))
            for one in rates
            if mine in one
        ]
        result[f"{mine} of_best_rival"] = spread(of_best)
    return result


def panel(size: str, work: Path, *, threads: int, rounds: int, batches: int, most: int = 3) -> dict[str, Any]:
    """Texts per second of G models side by side, over those of one model in the same round; how the texts split."""
    folder = with_tasks(size, work)
    result: dict[str, Any] = {"size": size, "batch": BATCH, "batches": batches, "rounds": rounds, "threads": threads}
    whole = [classify(task_texts(BATCH, seed=seed)) for seed in range(8)]
    single = [classify([text]) for text in task_texts(64)]
    with ExitStack() as stack:
        started = processes.entered(stack, [processes.tanbr(folder, work, models=G) for G in range(1, most + 1)])
        ports = {G: port for G, (port, _) in enumerate(started, start=1)}
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
    """Every way of serving the same dense model in float32; each is a context manager of (port, pid).

    The plain handler answers each request on a thread of its own, LitServe in as many processes as it is told; both are
    tried with one core and with all for a batch. tanbr finds out by itself.
    """
    found: dict[str, Any] = {"tanbr": processes.tanbr(folder, work)}
    if find_spec("onnxruntime"):
        found["tanbr onnx"] = processes.tanbr(folder, work, backend="onnx")
    for kind in ("plain", *(["litserve"] if find_spec("litserve") else [])):
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
    """Requests of one text each, on as many connections as two batches have texts; texts per second at saturation."""
    sent = itertools.cycle(bodies or [classify([text]) for text in texts(64)])
    load = asyncio.run(drive(port, sent, connections=2 * BATCH, until=after(BATCH * (batches + 2))))
    _check(load)
    return load.steady(BATCH)


def _check(load: Load) -> None:
    if load.failed:
        raise RuntimeError(f"{len(load.failed)} requests failed: {load.failed[0]}")


def latency(size: str, work: Path, *, threads: int, rounds: int, requests: int) -> dict[str, Any]:
    """Latency of one text at a time, less the forward pass alone in the same round.

    For tanbr that is its own pass, and beside it transformers', which is what the others run.
    """
    folder = checkpoint(size, work)
    result: dict[str, Any] = {"size": size, "requests": requests, "rounds": rounds, "threads": threads}
    bodies = itertools.cycle([classify([text]) for text in texts(64)])
    ways = {name: server for name, server in servers(folder, work, threads=threads).items() if name != "tanbr onnx"}
    with ExitStack() as stack:
        model = stack.enter_context(processes.bare(folder, work, threads=threads))
        started = processes.entered(stack, ways.values())
        model(1, 20)
        model(1, 20, own=True)
        for name, (port, pid) in zip(ways, started, strict=True):
            asyncio.run(drive(port, bodies, connections=1, until=after(20)))
            added, share, tails, passes, over = [], [], [], [], []
            for _ in range(rounds):
                with processes.alone(pid, [other for _, other in started]):
                    whole = statistics.median(model(1, requests))
                    bare = statistics.median(model(1, requests, own=True)) if name == "tanbr" else whole
                    load = asyncio.run(drive(port, bodies, connections=1, until=after(requests)))
                _check(load)
                passes.append(bare * 1e3)
                over.append((load.quantile(0.5) - whole) * 1e3)
                added.append((load.quantile(0.5) - bare) * 1e3)
                share.append(load.quantile(0.5) / bare - 1)
                tails.append(load.quantile(0.99) / load.quantile(0.5))
            result[name] = {
                "pass_ms": spread(passes),
                "added_ms": spread(added),
                "added_share": spread(share),
                "added_to_transformers_pass_ms": spread(over),
                "p99_over_median": spread(tails),
            }
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
