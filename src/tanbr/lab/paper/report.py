"""The report of a reproduction: a self-contained page, the same in Markdown, figures as JSON, pictures beside it."""

import json
import os
import platform
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import torch
from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from tanbr.files import check_writable, write_atomically
from tanbr.lab.paper.claim import VERDICTS, Verdict
from tanbr.lab.paper.job import commit
from tanbr.lab.paper.part import Part
from tanbr.lab.paper.parts import PARTS
from tanbr.lab.paper.reproduction import Reproduction
from tanbr.lab.paper.scale import Setup
from tanbr.lab.pictures import png, svg
from tanbr.types import to_jsonable

MARKS: dict[Verdict, str] = {"reproduced": "✓", "partly": "◐", "not": "✗", "cannot be tested here": "–"}
SCALE_WORDS = {
    "tiny": "the embedded models and generated tasks: this shows that the way from paper to figure works, and which "
    "claims hold on a small scale; it says little of models of the paper's size",
    "small": "small real models and GLUE",
    "paper": "the published size",
}


def write(found: Reproduction, *, command: str) -> Path:
    """Write report.html, report.md, results.json and pictures/ into the output folder; the page's path."""
    out = found.setup.out
    check_writable(out / "pictures")
    values = laid_out(found, command=command)
    for part in values["parts"]:
        for number, (picture, canvas) in enumerate(
            zip(part["pictures"], found.findings[part["name"]].pictures.values(), strict=True)
        ):
            picture["file"] = f"pictures/{part['name']}-{number + 1}.png"
            png(canvas, out / picture["file"])
    kept = {**values, "parts": [{k: v for k, v in part.items() if k != "about"} for part in values["parts"]]}
    write_atomically(out / "results.json", json.dumps(to_jsonable(kept), indent=1, ensure_ascii=False) + "\n")
    for part in values["parts"]:
        for picture, canvas in zip(part["pictures"], found.findings[part["name"]].pictures.values(), strict=True):
            picture["svg"] = Markup(svg(canvas))  # noqa: S704 - our own drawing
    loader = PackageLoader("tanbr.lab")
    plain = Environment(loader=loader, autoescape=False, trim_blocks=True, lstrip_blocks=True)  # noqa: S701 - Markdown
    page = Environment(loader=loader, autoescape=select_autoescape())
    write_atomically(out / "report.md", plain.get_template("paper.md").render(**values))
    return write_atomically(out / "report.html", page.get_template("paper.html").render(**values))


def laid_out(found: Reproduction, *, command: str) -> dict[str, Any]:
    """Lay out everything that a report says, pictures but by their captions."""
    scale = found.setup.scale.name
    parts: list[dict[str, Any]] = []
    for part in found.parts:
        findings, commits = found.findings[part.name], found.commits(part.name)
        parts.append(
            {
                "name": part.name,
                "title": part.title,
                "about": part.about,
                "command": _command(part, found.setup),
                "commits": commits,
                "seconds": found.seconds(part.name),
                "claims": [{**claim.to_json(), "mark": MARKS[claim.judgement.verdict]} for claim in findings.claims],
                "tables": [
                    {"title": table.title, "header": table.header, "rows": table.rows} for table in findings.tables
                ],
                "pictures": [{"caption": caption} for caption in findings.pictures],
            }
        )
    not_run = [part for name, part in PARTS.items() if name not in found.findings]
    counts = Counter(claim["verdict"] for part in parts for claim in part["claims"])
    return {
        "title": _title(found, len(not_run)),
        "command": command,
        "scale": scale,
        "scale_words": SCALE_WORDS.get(scale, ""),
        "commit": commit(),
        "elsewhere": found.of_others,
        "not_run": [{"title": part.title, "command": _command(part, found.setup)} for part in not_run],
        "models": _models(found),
        "machine": f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, "
        f"torch {torch.__version__.split('+')[0]}, one thread"
        + "".join(f", models on {device}" for device in found.setup.timed_on.values()),
        "counts": [(verdict, MARKS[verdict], counts[verdict]) for verdict in VERDICTS],
        "minutes": sum(kept.seconds for kept in found.kept.values()) / 60,
        "parts": parts,
    }


def _title(found: Reproduction, not_run: int) -> str:
    """Say in the title whether this is all of the paper."""
    scale = found.setup.scale.name
    if not_run:
        return f"The paper, reproduced in part ({scale}): {', '.join(found.findings)}"
    return f"The paper, reproduced ({scale})"


def _command(part: Part, setup: Setup) -> str:
    """Give the command that runs a part, with what it needs; places are left to whoever runs it."""
    needs = () if setup.embedded else part.needs
    tagged = ["--tagged"] if setup.tagged and "t5" in part.needs else []
    words = [f"--{need} {need.upper()}" for need in needs] + [f"--device {name}" for name in setup.timed_on.values()]
    return " ".join(["tanbr reproduce", part.name, "--scale", setup.scale.name, *words, *tagged])


def _models(found: Reproduction) -> list[str]:
    """Tell the models behind the parts that ran by their weights."""
    needed = {need for part in found.parts for need in part.needs}
    kinds: dict[Literal["model", "t5"], str] = {"model": "BERT-MoE", "t5": "T5-MoE"}
    return [f"{kind} {found.setup.name_of(which)}" for which, kind in kinds.items() if which in needed]
