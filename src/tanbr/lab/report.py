"""A self-contained page about a comparison: nothing to fetch, so it can be mailed or opened years later."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from tanbr.files import write_atomically
from tanbr.lab import pictures
from tanbr.lab.compare import Comparison
from tanbr.router import TreeView


def write_report(
    path: Path,
    result: Comparison,
    *,
    title: str,
    command: str,
    facts: Sequence[tuple[str, str]],
    tasks: Sequence[str],
    tree: TreeView,
    tail: int,
) -> Path:
    """Write the page; the first method of the comparison is the one it is about."""
    subject = next(iter(result.records))
    records = result.records[subject]
    forecast, served = np.array([r.task_mix for r in records]), np.array([r.blend for r in records])
    experts = [f"expert {k}" for k in range(served.shape[1])]
    mixes = [("True task mix", result.mixes), ("Task mix ψ as forecast by the monitor", forecast)]
    figures = (
        ("What the traffic held, and what the monitor made of it without any tag", pictures.shares(mixes, tasks)),
        ("What was served: one dense model per slot", pictures.shares([("Blend x of the experts", served)], experts)),
        ("What it earned", pictures.rewards(result)),
        ("What it missed", pictures.regret(result)),
        ("Where the router searched", pictures.tree(tree, experts)),
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
