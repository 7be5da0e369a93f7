"""Throughput and latency beside rivals, and latency while blends are swapped."""

import asyncio
import itertools
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from serving import processes
from serving.client import Connection, Load, after, ask, at, classify, drive, request
from serving.models import Given, K, checkpoint, task_texts, texts, with_tasks
from serving.rounds import ratios, spread

BATCH = 32
LOADS = {
    "requests of 32": "texts_per_second",  # 8 at a time
    "single texts": "texts_per_second",  # 32 clients
    "one client": "ms",  # a text at a time, median
    "half load": "p99_ms",
}


@dataclass(frozen=True)
class Server:
    """A way of serving: what runs it, and how it is asked."""

    run: AbstractContextManager[tuple[int, int]]  # gives port and process id
    foreign: bool = False  # whether it is asked by /classify and a model's name

    def asked(self, texts: Sequence[str]) -> bytes:
        """Build a request."""
        return request("POST", "/classify", {"model": "model", "input": texts}) if self.foreign else classify(texts)


def servers(given: Given, size: str, *, threads: int) -> dict[str, Server]:
    """Every way of serving the same dense model, by name and precision; a rival whose package is missing is left out.

    Each has all cores. The plain handler answers each request on a thread of its own, with torch's own threads;
    LitServe in as many processes as there are cores, which is faster here than one process.
    """
    folder, work, pythons = given.checkpoint(size), given.work, given.pythons
    past: dict[str, Any] = (
        {"history": given.history, "models": 1} if size in given.models else {}
    )  # its monitor reads every text
    best = past or {"precision": "int8"}  # as it chooses by itself, if there are texts to judge a precision by
    found = {
        "tanbr fp32": Server(processes.tanbr(folder, work, **past, precision="fp32")),
        "tanbr best": Server(processes.tanbr(folder, work, **best)),
    }
    for name, precision in (("fp32", "float32"), ("bf16", "bfloat16")):
        run = processes.rival("plain", folder, work, threads=threads, precision=precision)
        found[f"plain handler {name}"] = Server(run)
        if "infinity" in pythons:
            run = processes.infinity(
                given.dense(size), work, engine="torch", precision=precision, python=pythons["infinity"]
            )
            found[f"infinity torch {name}"] = Server(run, foreign=True)
        if "vllm" in pythons:
            run = processes.vllm(given.dense(size), work, precision=precision, python=pythons["vllm"])
            found[f"vllm {name}"] = Server(run, foreign=True)
    if "infinity" in pythons:
        for name, quantised in (("fp32", False), ("int8", True)):
            onnx = given.onnx(size, quantised=quantised)
            run = processes.infinity(onnx, work, engine="optimum", precision=name, python=pythons["infinity"])
            found[f"infinity onnx {name}"] = Server(run, foreign=True)
    if "litserve" in pythons or find_spec("litserve"):
        python = pythons.get("litserve", sys.executable)
        found["litserve fp32"] = Server(processes.rival("litserve", folder, work, threads=1, python=python))
    return found


def throughput(
    given: Given,
    size: str,
    *,
    threads: int,
    rounds: int,
    within: float,
    before: dict[str, Any],
    only: Sequence[str] = (),
) -> dict[str, Any]:
    """Texts per second of every way of serving, or of those whose names start as `only` says, round by round.

    In each round the bare model and all servers run in turn, each alone on the machine. Then texts come one by one at
    half the rate that the best rival of the round had with single texts, and what counts is the slowest one in a
    hundred. Rounds are added to those of `before`, as many as are done `within` so many seconds.
    """
    started, kept = time.perf_counter(), list(before.get("kept_rounds", ()))
    each = {"base": 8, "minilm": 24}.get(size, 8)  # requests of a whole batch
    whole = [given.texts(BATCH, seed=seed) for seed in range(each)]
    single = [[text] for text in given.texts(512, seed=99)]
    wanted = {
        name: one
        for name, one in servers(given, size, threads=threads).items()
        if not only or name.startswith(("tanbr", *only))
    }
    with ExitStack() as stack:
        model = stack.enter_context(
            processes.bare(given.checkpoint(size), given.work, whole[:4] + single[:20], threads=threads)
        )
        running = dict(zip(wanted, processes.entered(stack, [one.run for one in wanted.values()]), strict=True))
        pids, took = [pid for _, pid in running.values()], 0.0

        def load(name: str, bodies: list[list[str]], **how: Any) -> Load:
            port, pid = running[name]
            with processes.alone(pid, pids):
                return _drive(port, map(wanted[name].asked, itertools.cycle(bodies)), **how)

        for number in range(rounds + 1):  # the first is a warm-up
            if number > 1 and time.perf_counter() - started + took > within:
                break
            now, count = time.perf_counter(), each if number else 2
            one_by_one = 4 * count if number else 8
            found: dict[str, Any] = {"requests of 32": {}, "single texts": {}, "one client": {}, "half load": {}}
            for name in wanted:
                batches = load(name, whole, connections=8, until=after(count))
                found["requests of 32"][name] = BATCH * count / batches.took
                singles = load(name, single, connections=32, until=after(32 + 8 * count))
                found["single texts"][name] = singles.steady(16)
                alone = load(name, single, connections=1, until=after(one_by_one))
                found["one client"][name] = 1e3 * alone.quantile(0.5)
            with processes.alone(0, pids):
                found["bare"] = {
                    way: model(way) for way in ("transformers", "transformers one by one", "tanbr one by one")
                }
            rivals = [rate for name, rate in found["single texts"].items() if not name.startswith("tanbr")]
            rate = 0.5 * max(rivals or found["single texts"].values())
            for name in wanted if number else ():
                half = load(name, single, connections=32, until=after(12 * count), rate=rate)
                found["half load"][name] = 1e3 * half.quantile(0.99)
            kept += [found] if number else []
            took = max(took if number > 1 else 0.0, time.perf_counter() - now)
    lengths = [len(text.split()) for texts in whole for text in texts]
    return {
        "size": size,
        "texts": "GLUE" if given.pool else "generated",
        "words_of_a_text": {"mean": statistics.mean(lengths), "most": max(lengths)},
        "weights": "given" if size in given.models else "random",
        "rounds": len(kept),
        "seconds": time.perf_counter() - started,
        **compared(kept),
        "kept_rounds": kept,
    }


def compared(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """What each way of serving does, and what it is worth beside the best rival: of its precision, or of any."""
    result: dict[str, Any] = {}
    for load, unit in LOADS.items():
        names = list(dict.fromkeys(name for one in rounds for name in one[load]))
        values = {name: [one[load][name] for one in rounds if name in one[load]] for name in names}
        section: dict[str, Any] = {name: spread(found) for name, found in values.items()}
        for mine in (name for name in names if name.startswith("tanbr")):
            rivals = [name for name in names if not name.startswith("tanbr")]
            rivals = [name for name in rivals if name.endswith("fp32")] if mine.endswith("fp32") else rivals
            both = {name: [one[load] for one in rounds if {mine, name} <= one[load].keys()] for name in rivals}
            ratios = {name: spread([one[mine] / one[name] for one in of]) for name, of in both.items() if of}
            best = (min if unit == "texts_per_second" else max)(ratios, key=lambda n: ratios[n]["median"], default=None)
            if best is not None:
                section[f"{mine} over the best rival"] = {"rival": best} | ratios[best]
        result[f"{load}, {unit}"] = section
        if all("tanbr best" in one[load] for one in rounds):
            section["tanbr best over tanbr fp32"] = spread(
                [one[load]["tanbr best"] / one[load]["tanbr fp32"] for one in rounds]
            )
    bare = [
        one["bare"] | {"added": one["one client"].get("tanbr fp32", math.nan) - one["bare"]["tanbr one by one"]}
        for one in rounds
    ]
    result["bare loop"] = {name: spread([one[name] for one in bare]) for name in (bare[0] if bare else ())}
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
                "of_one_model": ratios([now for now, _ in rates[G]], [one for one, _ in rates[1]]),
                "of_one_model_single_texts": ratios([now for _, now in rates[G]], [one for _, one in rates[1]]),
                "requests_by_model": [model["requests"] for model in ask(port, "GET", "/v1/state")[1]["models"]],
            }
        result["texts_per_second"] = spread([rate[0] for rate in rates[1]])
        result["texts_per_second_single_texts"] = spread([rate[1] for rate in rates[1]])
    return result


def saturated(port: int, batches: int, bodies: list[bytes] | None = None) -> float:
    """Requests of a whole batch each, on four connections; texts per second."""
    sent = itertools.cycle(bodies or [classify(texts(BATCH, seed=seed)) for seed in range(8)])
    load = _drive(port, sent, connections=4, until=after(batches))
    return BATCH * len(load.seconds) / load.took


def singles(port: int, batches: int, bodies: list[bytes] | None = None) -> float:
    """Requests of one text each, on as many connections as two batches have texts; texts per second at saturation."""
    sent = itertools.cycle(bodies or [classify([text]) for text in texts(64)])
    load = _drive(port, sent, connections=2 * BATCH, until=after(BATCH * (batches + 2)))
    return load.steady(BATCH)


def _drive(port: int, requests: Iterator[bytes], **how: Any) -> Load:
    load = asyncio.run(drive(port, requests, **how))
    if load.failed:
        raise RuntimeError(f"{len(load.failed)} requests failed: {load.failed[0]}")
    return load


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
