"""Table I: loaded size and time per batch of routed, merging and merged T5-MoEs, float32 and int8."""

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from tanbr.lab.jobs import Job, Tick
from tanbr.lab.paper import claim
from tanbr.lab.paper.claim import Claim, Findings, Part, Results, Table
from tanbr.lab.paper.setup import ModelSize, Setup
from tanbr.lab.paper.timing import METHODS, SLOW, Models, cell, random_moe, token_merging
from tanbr.lab.pictures import bar_chart

PAPER = {  # seconds per batch
    "merged": 0.61, "task-1": 1.16, "task-2": 1.78, "task-3": 2.41, "token-1": 1.81, "token-2": 2.42, "token-3": 3.05,
    "task-merging": 3.01, "token-merging": 193.88,
}  # fmt: skip
LOADED = 0.22  # 220M of 1.0B parameters
ROUTED = ("task-1", "token-1", "task-2", "token-2", "task-3", "token-3")


def jobs(setup: Setup) -> list[Job]:
    """Make one job for each size of batch; Token-Merging has its own."""
    scale = setup.scale
    models = partial(_models, setup.out / "work" / "random-t5", scale.t5, setup.device)
    facts = {"size": vars(scale.t5), "length": scale.length, "cell_seconds": scale.cell_seconds, **setup.timed_on}

    def time_batch(batch: int, _: Tick) -> dict[str, Any]:
        return cell(models(), batch=batch, length=scale.length, rounds=scale.rounds, seconds=scale.cell_seconds)

    def time_tokens(_: Tick) -> dict[str, Any]:
        return token_merging(models(), length=scale.length, seconds=scale.cell_seconds)

    found = [
        Job(f"table1-{batch}", partial(time_batch, batch), {**facts, "batch": batch, "rounds": scale.rounds})
        for batch in scale.batches
    ]
    return [*found, Job(f"table1-{SLOW}", time_tokens, facts)]


@lru_cache(maxsize=1)
def _models(folder: Path, size: ModelSize, device: str) -> Models:
    return Models(random_moe(folder, size), device=device)


def findings(setup: Setup, results: Results) -> Findings:
    """Compare ratios: seconds are of this machine, ratios to the merged model are what the table is about."""
    scale = setup.scale
    batch = max(scale.batches)
    forward = {size: results[f"table1-{size}"] for size in scale.batches}
    t5, slow = forward[batch], results[f"table1-{SLOW}"]
    where = f"T5, batch {batch}, {setup.clock}"
    share = scale.t5.dense / scale.t5.whole
    claims = [Claim(
        "once merged, a fifth of the parameters is loaded", "220M of 1.0B (22%)",
        f"{scale.t5.dense / 1e6:.1f}M of {scale.t5.whole / 1e6:.1f}M ({share:.0%})", claim.about(share, LOADED),
    )]  # fmt: skip
    for name in (*ROUTED, "task-merging"):
        ours, paper = 1 - 1 / t5[name]["cpu_ratio"], 1 - PAPER["merged"] / PAPER[name]
        reason = f"merged once for each of the {scale.t5.experts} tasks in a batch here, however many rows share it"
        rival = "merging for every task of a batch"
        if name in ROUTED:
            kind, count = name.split("-")
            rival = f"{kind.capitalize()}-SMoE with {count} active"
            parts = [f"batch {size}: {1 / of[name]['cpu_ratio'] - 1:+.0%}" for size, of in forward.items()]
            if int8 := t5.get(f"{name} int8"):
                parts.append(f"both in int8: {t5['merged int8']['cpu_ratio'] / int8['cpu_ratio'] - 1:+.0%}")
            reason = f"on {setup.device}, D = {scale.t5.width}: {', '.join(parts)}"
        claims.append(Claim(
            f"merged is faster than {rival}", f"−{paper:.0%} ({PAPER[name]} s → {PAPER['merged']} s)",
            f"{-ours:+.0%} ({where})", claim.reduction(ours, paper), reason,
        ))  # fmt: skip
    claims.append(Claim(
        "merging for every token takes hundreds of times as long", f"{PAPER[SLOW] / PAPER['merged']:.0f} times",
        f"{slow['weights_ratio']:.0f} times (T5, batch 1, {slow['tokens']} tokens timed)",
        claim.checks({"more than 100 times as long as merged": slow["weights_ratio"] > 100}),
        f"the same sums, by running every expert on every token, take {slow['products_ratio']:.1f} times as long",
    ))  # fmt: skip
    ratios = {name: PAPER[name] / PAPER["merged"] for name in PAPER}
    rows = [
        [name, f"{ratios[name]:.2f}" if name in PAPER else "–"]
        + [f"{of[name]['cpu_ratio']:.2f}" if name in of else "–" for of in forward.values()]
        for name in METHODS
    ]
    seconds = [["merged, seconds", "0.61", *(f"{of['merged']['seconds']:.4f}" for of in forward.values())]]
    title = f"{setup.clock} relative to the merged model, medians; the paper's is of wall time on an A100, batch 128"
    table = Table(title, ["method", "paper", *(f"batch {size}" for size in forward)], rows + seconds)
    both = [name for name in PAPER if name in t5]
    groups = {
        "paper (A100, batch 128)": {name: ratios[name] for name in both},
        f"here ({where})": {name: t5[name]["cpu_ratio"] for name in both},
    }
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
