"""What experiments leave behind: the demo's page, and the tables, figures and pictures of `tanbr simulate`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup
from matplotlib.figure import Figure

import tanbr
from tanbr.files import write_atomically
from tanbr.lab import pictures
from tanbr.lab.jobs import commit
from tanbr.lab.standings import Standings

Laid = tuple[str, list[str], list[list[str]]]  # title, header, rows


def page(template: str, **values: Any) -> str:
    """Render a template: a self-contained page, or Markdown as it is."""
    environment = Environment(
        loader=PackageLoader("tanbr.lab"), autoescape=select_autoescape(), trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template).render(**values)


def drawing(canvas: Figure) -> Markup:
    """Render a picture to stand inside a page."""
    return Markup(pictures.svg(canvas))  # noqa: S704 - our own drawing


def write_page(
    path: Path, standings: Standings, *, title: str, command: str, facts: Mapping[str, str], about: str
) -> Path:
    """Write a page about a comparison and its first method; a browser has nothing to fetch for it."""
    mix, blend = _followed(standings)
    drawn = {
        "What the traffic held, and what the monitor made of it without any tag": mix,
        "What was served: one dense model per slot": blend,
        "What it earned": pictures.rewards(standings),
        "What it missed": pictures.regret(standings),
    }
    shown = [{"caption": caption, "svg": drawing(canvas)} for caption, canvas in drawn.items()]
    tables = [{"title": title, "header": header, "rows": rows} for title, header, rows in lay_out(standings)]
    parts = [
        {"name": "reward", "title": "Reward", "about": about, "tables": tables[:1]},
        {"name": "slots", "title": "Slot by slot", "pictures": shown},
    ]
    values = {"title": title, "command": command, "facts": facts, "subject": standings.subject, "parts": parts}
    return write_atomically(path, page("page.html", **values))


def write(out: Path, standings: Standings, *, command: str, facts: Mapping[str, Any]) -> Path:
    """Write everything into `out`; the path of the JSON."""
    about = {"command": command, "commit": commit(), "version": tanbr.__version__, "facts": dict(facts)}
    path = write_atomically(out / "simulate.json", json.dumps({**about, **standings.to_json()}, indent=1) + "\n")
    write_atomically(out / "results.md", markdown(standings, command=command))
    mix, blend = _followed(standings)
    drawn = {"reward": pictures.rewards(standings), "regret": pictures.regret(standings), "mix": mix, "blend": blend}
    if any(standings.held(method) > 1 for method in standings.methods if method != "tags"):
        drawn["dial"] = pictures.dial(standings)
    for name, canvas in drawn.items():
        pictures.png(canvas, out / f"{name}.png")
    return path


def _followed(standings: Standings) -> tuple[Figure, Figure]:
    """Draw the first seed's true mix over the one that the first method was asked with, and the blend it served."""
    method, true = standings.subject, next(iter(standings.mixes.values()))
    records = standings.by_method[method][0].records
    asked, served = np.array([r.task_mix for r in records]), np.array([r.blend for r in records])
    experts = [f"expert {k}" for k in range(served.shape[1])]
    mixes = [("True task mix", true), (f"Task mix ψ, as {method} was asked with", asked)]
    return pictures.shares(mixes, standings.tasks), pictures.shares([(f"Blend x served by {method}", served)], experts)


def markdown(standings: Standings, *, command: str) -> str:
    """Lay the tables out as a page."""
    parts = [f"**{title}**\n\n{grid(header, rows)}" for title, header, rows in lay_out(standings)]
    return "\n".join([f"# Online comparison\n\n`{command}`\n", *parts])


def grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table in Markdown."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, ["---"] * len(header), *rows))


def lay_out(standings: Standings) -> Iterator[Laid]:
    """Lay out rewards, the first method above each rival, and the tasks' own metrics."""
    late, seeds = standings.late, list(standings.mixes)
    header = ["method", "reward", f"from slot {late} on", "regret per slot", "merges"]
    rows = []
    for method in standings.methods:
        regret = standings.above(standings.best, method).mean
        cells = [str(standings.reward(method)), str(standings.reward(method, after=late)), f"{regret:.3f}"]
        rows.append([method, *cells, f"{np.mean(standings.merges(method)):.0f}"])
        if (share := standings.of_tags(method)) is not None:
            rows[-1].append(f"{100 * np.mean(share):.1f}%")
    if "tags" in standings.methods:
        header.append("share of tags")
    title = f"Reward in [0, 1], mean and 95% interval over the slots of seed {', '.join(map(str, seeds))}"
    yield f"{title}; regret is against “{standings.best}”", header, rows

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
        found = standings.figures(method)
        cells = ["–" if np.isnan(value) else f"{100 * value:.1f}" for value in found]
        rows.append([method, *cells, f"{100 * np.nanmean(found):.1f}"])
    yield "The tasks' own metrics over all answers, in points", ["method", *standings.tasks, "mean"], rows
