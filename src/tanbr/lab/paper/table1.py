"""Table I: loaded size and time per batch of routed, merging and merged models, T5 and BERT, float32 and int8."""

from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from tanbr.lab.paper import claim
from tanbr.lab.paper.claim import Claim, Findings, Part, Results, Table
from tanbr.lab.paper.job import Job, Tick
from tanbr.lab.paper.setup import ModelSize, Setup
from tanbr.lab.paper.timing import METHODS, Models, cell, random_moe, token_merging
from tanbr.lab.pictures import bar_chart

PAPER = {  # seconds per batch
    "merged": 0.61, "task-1": 1.16, "task-2": 1.78, "task-3": 2.41, "token-1": 1.81, "token-2": 2.42, "token-3": 3.05,
    "task-merging": 3.01, "token-merging": 193.88,
}  # fmt: skip
LOADED = 0.22  # 220M of 1.0B parameters
SLOW = "token-merging"  # measured on a few tokens, apart


def jobs(setup: Setup) -> list[Job]:
    """Make one job for each model, mode and batch; Token-Merging has its own."""
    scale = setup.scale
    found = []
    for kind, size in (("t5", scale.t5), ("bert", scale.bert)):
        folder = setup.out / "work" / f"random-{kind}"
        facts = {"size": vars(size), "length": scale.length, **setup.timed_on}
        for mode, batch in cells(kind, scale.batches):
            more = {"mode": mode, "batch": batch, "rounds": scale.rounds, "cell_seconds": scale.cell_seconds}
            timed = partial(_cell, folder, size, setup, mode, batch)
            found.append(Job(f"table1-{kind}-{mode}-{batch}", timed, facts | more))
        found.append(Job(f"table1-{kind}-{SLOW}", partial(_token_merging, folder, size, setup), facts))
    return found


def cells(kind: str, batches: tuple[int, ...]) -> Iterator[tuple[str, int]]:
    """List a family's kinds of batch: forward passes, and for a T5 decoding of small ones."""
    for batch in batches:
        yield "forward", batch
        if kind == "t5" and batch <= 32:
            yield "decode", batch


@lru_cache(maxsize=1)  # one family's models in memory at a time
def _models(folder: Path, size: ModelSize, device: str) -> Models:
    return Models(random_moe(folder, size), device=device)


def _cell(folder: Path, size: ModelSize, setup: Setup, mode: str, batch: int, _: Tick) -> dict[str, Any]:
    scale = setup.scale
    skip = {SLOW} | ({"task-merging"} if mode == "decode" and batch > 1 else set())  # minutes, and nothing new
    skip |= set() if setup.device == "cpu" else {name for name in METHODS if name.endswith(" int8")}  # the CPU's alone
    return cell(
        _models(folder, size, setup.device), mode, batch=batch, length=scale.length, rounds=scale.rounds,
        seconds=scale.cell_seconds, skip=skip,
    )  # fmt: skip


def _token_merging(folder: Path, size: ModelSize, setup: Setup, _: Tick) -> dict[str, Any]:
    models = _models(folder, size, setup.device)
    return token_merging(models, length=setup.scale.length, seconds=setup.scale.cell_seconds)


def findings(setup: Setup, results: Results) -> Findings:
    """Compare ratios: seconds are of this machine, ratios to the merged model are what the table is about."""
    scale = setup.scale
    batch = max(scale.batches)
    t5 = results[f"table1-t5-forward-{batch}"]
    where = f"T5, batch {batch}, {setup.clock}"
    claims = []
    whole, dense = scale.t5.whole, scale.t5.dense
    claims.append(Claim(
        "once merged, a fifth of the parameters is loaded", "220M of 1.0B (22%)",
        f"{dense / 1e6:.1f}M of {whole / 1e6:.1f}M ({dense / whole:.0%})", claim.about(dense / whole, LOADED),
    ))  # fmt: skip
    for names, words in (
        (("task-1", "token-1"), "one active expert"),
        (("task-2", "token-2", "task-3", "token-3"), "two and three active experts"),
    ):
        for name in names:
            ours, paper = 1 - 1 / t5[name]["cpu_ratio"], 1 - PAPER["merged"] / PAPER[name]
            claims.append(Claim(
                f"merged is faster than {_spoken(name)}", f"−{paper:.0%} ({PAPER[name]} s → {PAPER['merged']} s)",
                f"{-ours:+.0%} ({where})", claim.reduction(ours, paper),
                _reason(results, scale.batches, name, words, setup=setup),
            ))  # fmt: skip
    ours = 1 - 1 / t5["task-merging"]["cpu_ratio"]
    paper = 1 - PAPER["merged"] / PAPER["task-merging"]
    claims.append(Claim(
        "merged is faster than merging for every task of a batch", f"−{paper:.0%}", f"{-ours:+.0%} ({where})",
        claim.reduction(ours, paper),
        f"merged once for each of the {scale.t5.experts} tasks in a batch here, however many rows share it",
    ))  # fmt: skip
    slow = results[f"table1-t5-{SLOW}"]
    times = PAPER[SLOW] / PAPER["merged"]
    claims.append(Claim(
        "merging for every token takes hundreds of times as long", f"{times:.0f} times",
        f"{slow['weights_ratio']:.0f} times (T5, batch 1, {slow['tokens']} tokens timed)",
        claim.checks({"more than 100 times as long as merged": slow["weights_ratio"] > 100}),
        f"the same sums, by running every expert on every token, take {slow['products_ratio']:.1f} times as long",
    ))  # fmt: skip
    both = [name for name in PAPER if name in t5]
    groups = {
        "paper (A100, batch 128)": {name: PAPER[name] / PAPER["merged"] for name in both},
        f"here ({where})": {name: t5[name]["cpu_ratio"] for name in both},
    }
    picture = bar_chart(groups, title="Time per batch / merged", xlabel="times")
    return Findings(claims, _tables(setup, results), {"Time per batch": picture})


def _reason(results: Results, batches: tuple[int, ...], name: str, words: str, *, setup: Setup) -> str:
    parts = [
        f"batch {batch}: {1 / results[f'table1-t5-forward-{batch}'][name]['cpu_ratio'] - 1:+.0%}" for batch in batches
    ]
    int8 = results[f"table1-t5-forward-{max(batches)}"]
    against = int8.get(f"{name} int8")
    more = f"; both in int8: {int8['merged int8']['cpu_ratio'] / against['cpu_ratio'] - 1:+.0%}" if against else ""
    place = "this CPU" if setup.device == "cpu" else setup.device
    return f"with {words} on {place}, D = {setup.scale.t5.width}: {', '.join(parts)}{more}"


def _spoken(name: str) -> str:
    kind, count = name.split("-")
    return f"{kind.capitalize()}-SMoE with {count} active"


def _tables(setup: Setup, results: Results) -> list[Table]:
    columns = [
        (f"{kind.upper()} {mode} {batch}", results[f"table1-{kind}-{mode}-{batch}"])
        for kind in ("t5", "bert")
        for mode, batch in cells(kind, setup.scale.batches)
    ]
    rows = [
        [name, f"{PAPER[name] / PAPER['merged']:.2f}" if name in PAPER else "–"]
        + [f"{of[name]['cpu_ratio']:.2f}" if name in of else "–" for _, of in columns]
        for name in METHODS
        if name != SLOW
    ]
    paper = "the paper's is of wall time on an A100, T5, batch 128"
    title = f"{setup.clock} relative to the merged model, medians; {paper}"
    seconds = [["merged", *(f"{of['merged']['seconds']:.4f}" for _, of in columns)]]
    return [
        Table(title, ["method", "paper", *(name for name, _ in columns)], rows),
        Table("seconds per batch; they change with what else runs", ["", *(n for n, _ in columns)], seconds),
    ]


PART = Part(
    "table1",
    "Table I: loaded size and time per batch",
    "The weights are random: times do not depend on them. A round runs every method once on the same batch, so that "
    "each ratio to the merged model compares two runs that were close in time. Every batch mixes all tasks.",
    jobs,
    findings,
)
