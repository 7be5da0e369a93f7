"""Times of every way to run an MoE, as ratios inside one round: a busy machine slows neighbours alike."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tanbr.lab.paper.random_moe import METHODS, K, Models
from tanbr.moe.device import finish
from tanbr.moe.layer import Routing, TokenRouting, route

STEADY = 1.25  # how far `merged` may move within a round that counts
TOKENS = 8  # of which Token-Merging is timed; the rest would be the same


@torch.inference_mode()
def cell(
    models: Models, mode: str, *, batch: int, length: int, rounds: int, seconds: float, skip: set[str]
) -> dict[str, Any]:
    """Time every method on one kind of batch: rounds of all methods, until there are enough or time is up."""
    calls: dict[str, Callable[[], Any]] = {}
    for name, (model, routing) in METHODS.items():
        if name not in skip:
            work = models.work(model, mode, batch=batch, length=length)
            calls[name] = routed(models.get(model), routing(batch), work)
    wall: dict[str, list[float]] = {name: [] for name in calls}
    cpu: dict[str, list[float]] = {name: [] for name in calls}
    disturbed = 0
    for call in calls.values():
        call()  # warms up
    ends = time.monotonic() + seconds
    while len(wall["merged"]) < rounds and (time.monotonic() < ends or not wall["merged"]):
        times = {name: timed(call, models.device) for name, call in calls.items()}
        again = timed(calls["merged"], models.device)[0] / times["merged"][0]
        if not 1 / STEADY < again < STEADY and time.monotonic() < ends:
            disturbed += 1  # something else ran meanwhile: a round counts if it ends as fast as it began
            continue
        for name, (wall_time, cpu_time) in times.items():
            wall[name].append(wall_time)
            cpu[name].append(cpu_time)
    return {
        name: {
            "seconds": statistics.median(wall[name]),
            "fastest": min(wall[name]),
            "cpu_seconds": statistics.median(cpu[name]),
            "rounds": len(wall[name]),
            "disturbed": disturbed,
            **_ratios(wall[name], wall["merged"], "ratio"),
            **_ratios(cpu[name], cpu["merged"], "cpu_ratio"),
        }
        for name in calls
    }


@torch.inference_mode()
def token_merging(models: Models, *, length: int, seconds: float) -> dict[str, Any]:
    """Time merging an FFN for every token, on a few tokens, as a ratio to the merged model's time for as many."""
    model = models.get("moe")
    ids = models.tokens("moe", batch=1, length=TOKENS, seed=0)
    more = {"decoder_input_ids": ids[:, :1]} if models.writes else {}
    merged = models.work("merged", "forward", batch=1, length=length)
    by_weights = routed(model, TokenRouting(K, mix="weights"), lambda: model(input_ids=ids, **more))
    # the same sums without a merged FFN per token: every expert runs on every token
    by_products = routed(model, TokenRouting(K, mix="products"), models.work("moe", "forward", batch=1, length=length))
    found: dict[str, list[float]] = {"weights": [], "products": []}
    ends = time.monotonic() + seconds
    for call in (merged, by_products):
        call()  # warms up
    while len(found["weights"]) < 5 and (time.monotonic() < ends or not found["weights"]):
        whole = timed(merged, models.device)[1]
        found["weights"].append(timed(by_weights, models.device)[1] * length / TOKENS / whole)
        found["products"].append(timed(by_products, models.device)[1] / whole)
    return {"tokens": TOKENS, "length": length, **{f"{n}_ratio": statistics.median(v) for n, v in found.items()}}


def timed(call: Callable[[], Any], device: torch.device) -> tuple[float, float]:
    """Take the wall time of a call, and that of its work."""
    worked, start = work_time(device), time.perf_counter()
    call()
    worked = work_time(device) - worked
    return time.perf_counter() - start, worked


def work_time(device: torch.device) -> float:
    """Read a clock of work: CPU time, for other work on the machine does not count; elsewhere the wall's, when done."""
    finish(device)
    return time.process_time() if device.type == "cpu" else time.perf_counter()


def routed(model: nn.Module, routing: Routing | None, call: Callable[[], Any]) -> Callable[[], Any]:
    """Give a call that routes the model first."""

    def run() -> None:
        if routing is not None:
            route(model, routing)
        call()

    return run


def _ratios(values: list[float], base: list[float], name: str) -> dict[str, float]:
    ratios = sorted(a / b for a, b in zip(values, base, strict=True))
    return {name: statistics.median(ratios), f"{name}_low": ratios[0], f"{name}_high": ratios[-1]}
