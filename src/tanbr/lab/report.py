"""What experiments leave behind: the demo's page, and the tables, figures and pictures of `tanbr simulate`."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

import tanbr
from tanbr.files import write_atomically
from tanbr.lab import pictures
from tanbr.lab.compare import Comparison
from tanbr.lab.standings import SHARE, WINDOW, Standings

Laid = tuple[str, list[str], list[list[str]]]  # title, header, rows


def write_report(
    path: Path,
    result: Comparison,
    *,
    title: str,
    command: str,
    facts: Sequence[tuple[str, str]],
    tasks: Sequence[str],
    tail: int,
) -> Path:
    """Write a page about a comparison and its first method; a browser has nothing to fetch for it."""
    subject = next(iter(result.records))
    records = result.records[subject]
    forecast, served = np.array([r.task_mix for r in records]), np.array([r.blend for r in records])
    experts = [f"expert {k}" for k in range(served.shape[1])]
    mixes = [("True task mix", result.mixes), ("Task mix ψ as forecast by the monitor", forecast)]
    figures = (
        ("What the traffic held, and what the monitor made of it without any tag", pictures.shares(mixes, tasks)),
        ("What was served: one dense model per slot", pictures.shares([("Blend x of the experts", served)], experts)),
        ("What it earned", pictures.rewards([result], list(result.records), bounds=(result.best,))),
        ("What it missed", pictures.regret([result], list(result.records), bounds=())),
    )
    environment = Environment(loader=PackageLoader("tanbr.lab"), autoescape=select_autoescape())
    page = environment.get_template("report.html").render(
        title=title,
        command=command,
        facts=facts,
        subject=subject,
        best=result.best,
        tail=tail,
        summary=result.summary(tail=tail),
        figures=[(caption, Markup(pictures.svg(canvas))) for caption, canvas in figures],  # noqa: S704 - our own drawing
    )
    return write_atomically(path, page)


def write(
    out: Path,
    standings: Standings,
    *,
    command: str,
    facts: Mapping[str, Any],
    memory: Callable[[int], float] | None = None,
) -> Path:
    """Write everything into `out`; the path of the JSON. `memory` tells the MB of so many models, for the dial."""
    about = {"command": command, "commit": commit(), "version": tanbr.__version__, "facts": dict(facts)}
    counts = sorted({standings.held(method) for method in standings.methods})
    if memory is not None and any(standings.held(method) > 1 for method in standings.methods if method != "tags"):
        about["memory_mb"] = {str(count): memory(count) for count in counts}
        pictures.png(pictures.dial(standings, memory), out / "dial.png")
    path = write_atomically(out / "simulate.json", json.dumps({**about, **standings.to_json()}, indent=1) + "\n")
    write_atomically(out / "results.md", markdown(standings, command=command))
    draw(out, standings)
    return path


def draw(out: Path, standings: Standings) -> None:
    """Draw the pictures into `out`."""
    seed, first = next(iter(standings.comparisons.items()))
    records = first.records[standings.subject]
    mixes = [
        (f"True task mix (seed {seed})", first.mixes),
        (f"Task mix ψ, as {standings.subject} was asked with", np.array([r.task_mix for r in records])),
    ]
    blend = np.array([r.blend for r in records])
    experts = [f"expert {k}" for k in range(blend.shape[1])]
    drawn, bounds = pictures.shown(standings), (standings.best, "tags")
    comparisons = list(standings.comparisons.values())
    for name, canvas in {
        "reward": pictures.rewards(comparisons, drawn, bounds=bounds),
        "regret": pictures.regret(comparisons, drawn, bounds=bounds),
        "mix": pictures.shares(mixes, standings.tasks),
        "blend": pictures.shares([(f"Blend x served by {standings.subject} (seed {seed})", blend)], experts),
    }.items():
        pictures.png(canvas, out / f"{name}.png")


def markdown(standings: Standings, *, command: str) -> str:
    """Lay the tables out as a page."""
    parts = [f"# Online comparison\n\n`{command}`\n"]
    for title, header, rows in lay_out(standings):
        lines = [header, ["---"] * len(header), *rows]
        parts.append("\n".join([f"**{title}**", "", *(f"| {' | '.join(cells)} |" for cells in lines), ""]))
    return "\n".join(parts)


def lay_out(standings: Standings) -> Iterator[Laid]:
    """Lay out rewards, the first method above each rival, how soon, the monitor's share, and the tasks' metrics."""
    late, seeds = standings.late, list(standings.comparisons)
    header = ["method", "reward", f"from slot {late} on", "regret per slot", "slots to 95%", "merges"]
    if "tags" in standings.methods:
        header.append("share of tags")
    rows = []
    for method in standings.methods:
        reach = ", ".join("never" if slot is None else str(slot) for slot in standings.slots_to_share(method))
        merges = np.mean([c.records[method][-1].merge_version for c in standings.comparisons.values()])
        regret = standings.above(standings.best, method).mean
        cells = [str(standings.reward(method)), str(standings.reward(method, after=late)), f"{regret:.3f}", reach]
        rows.append([method, *cells, f"{merges:.0f}"])
        if "tags" in standings.methods:
            rows[-1].append(f"{100 * np.mean(standings.ratio(method, 'tags')):.1f}%")
    note = f"slots to 95%: from which, per seed, {WINDOW} slots earn {SHARE:.0%} of “{standings.best}”, as for regret"
    yield f"Reward in [0, 1], mean and 95% interval over {len(seeds)} seeds and their slots; {note}", header, rows

    for own in standings.variants:
        rows = []
        for rival in (method for method in standings.methods if method != own):
            all_slots, in_the_end = standings.above(own, rival), standings.above(own, rival, after=late)
            cells = [all_slots.points, in_the_end.points, *(f"{100 * mean:+.1f}" for mean in in_the_end.seeds)]
            half = in_the_end.over_seeds
            rows.append([rival, *cells, "–" if np.isnan(half) else f"± {100 * half:.1f}"])
        if rows:
            header = [f"{own} above", "all slots", f"from slot {late} on", *(f"… seed {seed}" for seed in seeds)]
            title = "Points above each rival on the same requests (95% interval over blocks of slots)"
            yield title, [*header, "± over seeds"], rows

    rows = []
    for method in standings.methods:
        if f"{method}+oracle" in standings.methods:
            ratios = standings.ratio(method, f"{method}+oracle")
            error = np.mean(standings.forecast_error(method))
            rows.append([method, f"{np.mean(ratios):.3f}", ", ".join(f"{r:.3f}" for r in ratios), f"{error:.3f}"])
    if rows:
        title = "Reward with the monitor's mix over that with the true one"
        yield title, ["method", "ratio", "per seed", "L1 error of ψ"], rows

    rows = []
    for method in standings.methods:
        found = standings.figures(method)
        cells = ["–" if np.isnan(value) else f"{100 * value:.1f}" for value in found]
        rows.append([method, *cells, f"{100 * np.nanmean(found):.1f}"])
    yield "The tasks' own metrics over all answers, in points", ["method", *standings.tasks, "mean"], rows


@cache
def commit() -> str:
    """Name the code that runs: the commit of its checkout, with a + if it was changed since; its version elsewhere."""
    package = Path(tanbr.__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(package), *words],  # noqa: S607
            capture_output=True, text=True, check=True, timeout=20,
        )  # fmt: skip
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) / "src" / "tanbr" != package.resolve():
            return f"version {tanbr.__version__}"
        changed = "+" if git("status", "--porcelain", "--", str(package)) else ""
        return git("rev-parse", "--short=10", "HEAD") + changed
    except (OSError, subprocess.SubprocessError):
        return f"version {tanbr.__version__}"
