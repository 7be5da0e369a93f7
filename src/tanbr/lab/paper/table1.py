"""Table I: loaded size and time per batch of routed, merging and merged T5-MoEs.

Weights are random, and times are ratios of CPU time inside one round: a busy machine slows all alike.
"""

import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from tanbr.lab.jobs import Job, Tick
from tanbr.lab.paper.claim import Claim, Findings, Part, Results, Table, reduced, same
from tanbr.lab.paper.setup import K, Setup
from tanbr.lab.pictures import bar_chart
from tanbr.moe.families.t5 import T5MoeConfig, T5MoeForConditionalGeneration
from tanbr.moe.layer import BlendRouting, Routing, TaskRouting, TokenRouting, route

PAPER = {  # seconds per batch
    "merged": 0.61, "task-1": 1.16, "task-2": 1.78, "task-3": 2.41, "token-1": 1.81, "token-2": 2.42, "token-3": 3.05,
    "task-merging": 3.01, "token-merging": 193.88,
}  # fmt: skip
LOADED = 0.22  # 220M of 1.0B parameters
ROUTED = ("task-1", "token-1", "task-2", "token-2", "task-3", "token-3")
ANSWER = 16  # tokens of a timed answer
TOKENS = 8  # of which Token-Merging is timed; the rest would be the same
METHODS: dict[str, Callable[[int], Routing | None]] = {  # its routing of a batch of n; None for the merged model
    "merged": lambda _: None,
    **{f"task-{k}": lambda n, k=k: TaskRouting(_tasks(n, k)) for k in (1, 2, 3)},  # type: ignore[misc]
    **{f"token-{k}": lambda _, k=k: TokenRouting(k) for k in (1, 2, 3)},  # type: ignore[misc]
    "task-merging": lambda n: BlendRouting(_task_blends(n)),
}
SLOW = "token-merging"  # an FFN merged for every token; timed apart, on a few tokens


def _tasks(n: int, k: int) -> Tensor:
    """Give each of n sequences a task, evenly and in mixed order, and k experts to the task."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    return torch.stack([(order + i) % K for i in range(k)], dim=1)


def _task_blends(n: int) -> Tensor:
    """Give each of n sequences the blend of its task."""
    blends = torch.rand(K, K, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    return blends[_tasks(n, 1)[:, 0]]


def merged_and_moe(shape: Mapping[str, int]) -> tuple[Any, Any]:
    """Build a dense T5, as a merge is, and the T5-MoE of that shape with a gate at every site; weights are random."""
    moe = T5MoeConfig(**shape, num_experts=K, router=True, decoder_start_token_id=0)
    return (
        T5ForConditionalGeneration(T5Config(**shape, decoder_start_token_id=0)).eval(),
        T5MoeForConditionalGeneration(moe).eval(),
    )


def timer(model: Any, routing: Routing | None, *, batch: int, length: int, answer: int = ANSWER) -> Callable[[], float]:
    """Give a call that runs the model on drawn tokens (batch, length), and tells its seconds of CPU time."""
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(3, model.config.vocab_size, (batch, length), generator=generator)

    @torch.inference_mode()
    def run() -> float:
        if routing is not None:
            route(model, routing)
        started = time.process_time()
        model(input_ids=ids, decoder_input_ids=ids[:, :answer])
        return time.process_time() - started

    run()  # warms up
    return run


def rounds_of(timers: Mapping[str, Callable[[], float]], *, most: int, seconds: float) -> dict[str, Any]:
    """Run all of them in turn until there are enough rounds or time is up: medians, also as ratios to the first's."""
    times: list[list[float]] = []
    ends = time.monotonic() + seconds
    while len(times) < most and (time.monotonic() < ends or not times):
        times.append([run() for run in timers.values()])
    taken = np.array(times)  # (rounds, methods)
    columns = zip(timers, np.median(taken, axis=0), np.median(taken / taken[:, :1], axis=0), strict=True)
    return {name: {"seconds": float(middle), "cpu_ratio": float(ratio)} for name, middle, ratio in columns}


def jobs(setup: Setup) -> list[Job]:
    """Make one job for each size of batch; Token-Merging has its own."""
    scale = setup.scale
    length, seconds = scale.length, scale.cell_seconds
    models = cache(partial(merged_and_moe, scale.t5))
    facts = {"shape": scale.t5, "length": length, "cell_seconds": seconds}

    def time_batch(batch: int, _: Tick) -> dict[str, Any]:
        merged, moe = models()
        routings = {name: routing(batch) for name, routing in METHODS.items()}
        timers = {
            name: timer(moe if routing else merged, routing, batch=batch, length=length)
            for name, routing in routings.items()
        }
        return rounds_of(timers, most=scale.rounds, seconds=seconds)

    def time_tokens(_: Tick) -> dict[str, Any]:
        merged, moe = models()
        timers = {
            "merged": timer(merged, None, batch=1, length=length),
            "weights": timer(moe, TokenRouting(K, mix="weights"), batch=1, length=TOKENS, answer=1),
            # the same sums without a merged FFN per token: every expert runs on every token
            "products": timer(moe, TokenRouting(K, mix="products"), batch=1, length=length),
        }
        found = rounds_of(timers, most=5, seconds=seconds)
        weights, products = (found[name]["cpu_ratio"] for name in ("weights", "products"))
        return {"weights_ratio": weights * length / TOKENS, "products_ratio": products}

    found = [
        Job(f"table1-{batch}", partial(time_batch, batch), {**facts, "batch": batch, "rounds": scale.rounds})
        for batch in scale.batches
    ]
    return [*found, Job(f"table1-{SLOW}", time_tokens, facts)]


def findings(setup: Setup, results: Results) -> Findings:
    """Compare ratios: seconds are of this machine, ratios to the merged model are what the table is about."""
    scale = setup.scale
    batch = max(scale.batches)
    of = {size: results[f"table1-{size}"] for size in scale.batches}
    ratio = {name: of[batch][name]["cpu_ratio"] for name in METHODS}
    slow, where = results[f"table1-{SLOW}"], f"T5, batch {batch}, CPU time"
    with torch.device("meta"):
        dense, whole = (sum(one.numel() for one in model.parameters()) for model in merged_and_moe(scale.t5))
    claims = [Claim(
        "once merged, a fifth of the parameters is loaded", "220M of 1.0B (22%)",
        f"{dense / 1e6:.1f}M of {whole / 1e6:.1f}M ({dense / whole:.0%})", same(dense / whole, LOADED),
    )]  # fmt: skip
    for name in (*ROUTED, "task-merging"):
        ours, paper = 1 - 1 / ratio[name], 1 - PAPER["merged"] / PAPER[name]
        kind, _, count = name.partition("-")
        by_batch = ", ".join(f"batch {size}: {1 / of[size][name]['cpu_ratio'] - 1:+.0%}" for size in of)
        routed = name in ROUTED
        rival = f"{kind.capitalize()}-SMoE with {count} active" if routed else "merging for every task of a batch"
        merging = f"merged once for each of the {K} tasks in a batch here, however many rows share it"
        claims.append(Claim(
            f"merged is faster than {rival}", f"−{paper:.0%} ({PAPER[name]} s → {PAPER['merged']} s)",
            f"{-ours:+.0%} ({where})", reduced(ours, paper), by_batch if routed else merging,
        ))  # fmt: skip
    claims.append(Claim(
        "merging for every token takes hundreds of times as long", f"{PAPER[SLOW] / PAPER['merged']:.0f} times",
        f"{slow['weights_ratio']:.0f} times (T5, batch 1, {TOKENS} tokens timed)",
        slow["weights_ratio"] > 100,
        f"the same sums, by running every expert on every token, take {slow['products_ratio']:.1f} times as long",
    ))  # fmt: skip
    papers = {name: PAPER[name] / PAPER["merged"] for name in METHODS}
    rows = [
        [name, f"{papers[name]:.2f}", *(f"{size[name]['cpu_ratio']:.2f}" for size in of.values())] for name in METHODS
    ]
    rows.append(["merged, seconds", "0.61", *(f"{size['merged']['seconds']:.4f}" for size in of.values())])
    title = "CPU time relative to the merged model, medians; the paper's is wall time on an A100, batch 128"
    table = Table(title, ["method", "paper", *(f"batch {size}" for size in of)], rows)
    groups = {"paper (A100, batch 128)": papers, f"here ({where})": ratio}
    picture = bar_chart(groups, title="Time per batch / merged", xlabel="times")
    return Findings(claims, [table], {"Time per batch": picture})


PART = Part(
    "table1",
    "Table I: loaded size and time per batch",
    "The weights are random: times do not depend on them. A round runs every method once on the same batch, so that "
    "each ratio to the merged model compares two runs that were close in time. Every batch mixes all tasks.",
    jobs,
    findings,
    seeds="",
)
