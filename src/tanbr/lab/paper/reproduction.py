"""All asked-for parts from beginning to end: run what is missing, judge the claims, and write the report.

The report is a self-contained page, the same in Markdown, the figures as JSON, and pictures beside them.
"""

import difflib
import json
import os
import platform
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from tanbr.errors import ConfigError
from tanbr.files import check_writable, write_atomically
from tanbr.lab import report
from tanbr.lab.paper import fig2, fig3, fig4, fig5, fig6, fig7, job, table1, table2, theorem1
from tanbr.lab.paper.claim import VERDICTS, Findings, Part, Verdict
from tanbr.lab.paper.job import Job, Kept, Moved
from tanbr.lab.paper.setup import Setup
from tanbr.lab.pictures import png, svg
from tanbr.types import to_jsonable

PARTS: dict[str, Part] = {  # in the paper's order
    module.PART.name: module.PART for module in (table1, fig2, fig3, table2, fig4, fig5, fig6, fig7, theorem1)
}
ALL = "all"
MINUTES = {  # what the parts took on one core when they were last run; runs that several share count once
    "tiny": {"table1": 2, "fig2": 6, "fig4": 4, "fig6": 1, "fig7": 3, "theorem1": 1},
    "small": {"table1": 61, "fig2": 75, "fig4": 101, "fig6": 1, "fig7": 12, "theorem1": 3},
}
MARKS: dict[Verdict, str] = {"reproduced": "✓", "partly": "◐", "not": "✗", "cannot be tested here": "–"}
SCALE_WORDS = {
    "tiny": "the embedded models and generated tasks: this shows that the way from paper to figure works, and which "
    "claims hold on a small scale; it says little of models of the paper's size",
    "small": "small real models and GLUE",
    "paper": "the published size",
}


def chosen(names: list[str]) -> list[Part]:
    """Find parts by their names, in the paper's order; all of them for `all`, or for none."""
    for name in names:
        if name not in (*PARTS, ALL):
            near = difflib.get_close_matches(name, (*PARTS, ALL), n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(f"unknown table or figure {name!r}; {hint}there are {', '.join(PARTS)}, and {ALL}")
    wanted = PARTS if not names or ALL in names else names
    return [part for name, part in PARTS.items() if name in wanted]


@dataclass(frozen=True)
class Reproduction:
    """What was found."""

    setup: Setup
    findings: Mapping[str, Findings]  # part → what it says
    parts: Sequence[Part]
    jobs: Mapping[str, Sequence[str]]  # part → its jobs
    kept: Mapping[str, Kept]  # job → its result

    def commits(self, part: str) -> list[str]:
        """List the commits that a part's results are of."""
        return sorted({self.kept[name].commit for name in self.jobs[part]})

    def seconds(self, part: str) -> float:
        """Add up what a part's jobs took, wherever they ran first."""
        return sum(self.kept[name].seconds for name in self.jobs[part])

    @property
    def of_others(self) -> str:
        """Say how many results are of another commit than the code that runs now; nothing if none is."""
        others = Counter(kept.commit for kept in self.kept.values() if kept.commit != report.commit())
        counts = ", ".join(f"{count} of {name}" for name, count in others.items())
        return f"{others.total()} of {len(self.kept)} results are of other commits ({counts})" if others else ""


def reproduce(
    parts: Sequence[Part],
    setup: Setup,
    *,
    moved: Moved = lambda *_: None,
    finished: Callable[[str, Kept], None] = lambda *_: None,
) -> Reproduction:
    """Run the jobs of all parts that are missing, each once, and judge the claims."""
    for part in parts:
        setup.check(part.needs, part.name)
    torch.set_num_threads(1)  # sums are the same on every machine, and a neighbour's load matters less
    of = {part.name: part.jobs(setup) for part in parts}
    every = [one for jobs in of.values() for one in jobs]
    kept = job.run(every, out=setup.out, moved=moved, finished=finished)
    shutil.rmtree(setup.out / "work", ignore_errors=True)  # models and states: everything is measured
    results = {name: one.result for name, one in kept.items()}
    findings = {part.name: part.findings(setup, results) for part in parts}
    return Reproduction(setup, findings, parts, {name: [one.name for one in jobs] for name, jobs in of.items()}, kept)


def missing(parts: Sequence[Part], setup: Setup) -> dict[str, list[Job]]:
    """List each part's jobs that are not done, each under the first part that needs it."""
    seen: set[str] = set()
    found: dict[str, list[Job]] = {}
    for part in parts:
        own = {one.name: one for one in part.jobs(setup)}
        found[part.name] = [one for one in own.values() if one.name not in seen and job.load(setup.out, one) is None]
        seen |= set(own)
    return found


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
        "commit": report.commit(),
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
    """Give the command that runs a part, with the options it needs; folders are left to the reader."""
    needs = () if setup.embedded else part.needs
    tagged = ["--tagged"] if setup.tagged and "t5" in part.needs else []
    words = [f"--{need} {need.upper()}" for need in needs] + [f"--device {name}" for name in setup.timed_on.values()]
    return " ".join(["tanbr reproduce", part.name, "--scale", setup.scale.name, *words, *tagged])


def _models(found: Reproduction) -> list[str]:
    """Tell the models behind the parts that ran by their weights."""
    needed = {need for part in found.parts for need in part.needs}
    kinds: dict[Literal["model", "t5"], str] = {"model": "BERT-MoE", "t5": "T5-MoE"}
    return [f"{kind} {found.setup.name_of(which)}" for which, kind in kinds.items() if which in needed]
