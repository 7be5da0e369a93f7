"""Table I: loaded size and time per batch of routed, merging and merged models, T5 and BERT, float32 and int8."""

from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tanbr.lab.paper import claim
from tanbr.lab.paper.claim import Claim, Findings, Part, Results, Table
from tanbr.lab.paper.job import Job, Tick
from tanbr.lab.paper.setup import ModelSize, Setup
from tanbr.lab.paper.timing import METHODS, Models, cell, memory, random_moe, token_merging
from tanbr.lab.pictures import INK, LINES, figure, name_below, styled

PAPER = {  # seconds per batch
    "merged": 0.61, "task-1": 1.16, "task-2": 1.78, "task-3": 2.41, "token-1": 1.81, "token-2": 2.42, "token-3": 3.05,
    "task-merging": 3.01, "token-merging": 193.88,
}  # fmt: skip
LOADED = 0.22  # 220M of 1.0B parameters
LESS_MEMORY = 0.20  # "20% to 25%" (Fig. 3)
ALONE = ("merged", "task-1")  # each in a process of its own, for memory
SLOW = "token-merging"  # measured on a few tokens, apart


def jobs(setup: Setup) -> list[Job]:
    """Make one job for each model, mode and batch; Token-Merging and memory have their own."""
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
        for name in ALONE if kind == "t5" else ():  # the table is about T5
            most = max(scale.batches)
            work = partial(_memory, folder, size, setup, name, most)
            found.append(Job(f"table1-memory-{name}", work, facts | {"batch": most}))
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


def _memory(folder: Path, size: ModelSize, setup: Setup, name: str, batch: int, _: Tick) -> dict[str, float] | None:
    return memory(random_moe(folder, size), name, batch=batch, length=setup.scale.length, device=setup.device)


def findings(setup: Setup, results: Results) -> Findings:
    """Compare ratios: seconds are of this machine, ratios to the merged model are what the table is about."""
    scale = setup.scale
    batch = max(scale.batches)
    t5 = results[f"table1-t5-forward-{batch}"]
    where = f"T5, batch {batch}, {setup.clock}"
    claims = []
    whole, dense = scale.t5.whole, scale.t5.dense
    claims.append(
        Claim(
            "once merged, a fifth of the parameters is loaded", "220M of 1.0B (22%)",
            f"{dense / 1e6:.1f}M of {whole / 1e6:.1f}M ({dense / whole:.0%})", claim.about(dense / whole, LOADED),
        )
    )  # fmt: skip
    for names, words in (
        (("task-1", "token-1"), "one active expert"),
        (("task-2", "token-2", "task-3", "token-3"), "two and three active experts"),
    ):
        for name in names:
            ours, paper = 1 - 1 / t5[name]["cpu_ratio"], 1 - PAPER["merged"] / PAPER[name]
            claims.append(
                Claim(
                    f"merged is faster than {_spoken(name)}", f"−{paper:.0%} ({PAPER[name]} s → {PAPER['merged']} s)",
                    f"{-ours:+.0%} ({where})", claim.reduction(ours, paper),
                    _reason(results, scale.batches, name, words, setup=setup),
                )
            )  # fmt: skip
    ours = 1 - 1 / t5["task-merging"]["cpu_ratio"]
    paper = 1 - PAPER["merged"] / PAPER["task-merging"]
    claims.append(
        Claim(
            "merged is faster than merging for every task of a batch", f"−{paper:.0%}", f"{-ours:+.0%} ({where})",
            claim.reduction(ours, paper),
            f"merged once for each of the {scale.t5.experts} tasks in a batch here, however many rows share it",
        )
    )  # fmt: skip
    slow = results[f"table1-t5-{SLOW}"]
    times = PAPER[SLOW] / PAPER["merged"]
    claims.append(
        Claim(
            "merging for every token takes hundreds of times as long", f"{times:.0f} times",
            f"{slow['weights_ratio']:.0f} times (T5, batch 1, {slow['tokens']} tokens timed)",
            claim.checks({"more than 100 times as long as merged": slow["weights_ratio"] > 100}),
            f"the same sums, by running every expert on every token, take {slow['products_ratio']:.1f} times as long",
        )
    )  # fmt: skip
    claims.append(_memory_claim(setup, results, batch))
    return Findings(claims, _tables(setup, results), {"Time per batch, relative to the merged model": draw(t5, where)})


def _memory_claim(setup: Setup, results: Results, batch: int) -> Claim:
    one, other = results["table1-memory-merged"], results["table1-memory-task-1"]
    says = "only the merged model is loaded, so less memory is needed"
    if one is None or other is None:
        return Claim(says, "−20% to −25%", "–", claim.untested(), "memory is read from /proc, which only Linux has")
    less = 1 - one["peak_resident"] / other["peak_resident"]
    reason = (
        f"{'above an idle process' if setup.device == 'cpu' else setup.memory}: {one['peak_resident'] / 1e6:.0f} MB "
        f"against {other['peak_resident'] / 1e6:.0f} MB at the peak of a batch of {batch}"
    )
    return Claim(says, "−20% to −25%", f"{-less:+.0%}", claim.reduction(less, LESS_MEMORY), reason)


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


@styled
def draw(found: dict[str, Any], where: str) -> Figure:
    """Draw the paper's ratios beside ours."""
    canvas, (axis,) = figure(height=3.6)
    names = [name for name in PAPER if name in found]
    for i, (label, values, colour) in enumerate(
        (
            ("paper (A100, batch 128)", [PAPER[name] / PAPER["merged"] for name in names], INK),
            (f"here ({where})", [found[name]["cpu_ratio"] for name in names], LINES[0]),
        )
    ):
        at = [n + (i - 0.5) * 0.38 for n in range(len(names))]
        axis.barh(at, values, height=0.36, color=colour, label=label)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.axvline(1, color=INK, lw=0.6, ls=":")
    axis.set(title="Time per batch / merged", xlabel="times")
    name_below(canvas)
    return canvas


PART = Part(
    "table1",
    "Table I: loaded size and time per batch",
    "The weights are random: times do not depend on them. A round runs every method once on the same batch, so that "
    "each ratio to the merged model compares two runs that were close in time. Every batch mixes all tasks.",
    jobs,
    findings,
)
