"""All asked-for parts from beginning to end: run what is missing, judge the claims, and write the report."""

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

from tanbr.errors import ConfigError
from tanbr.files import check_writable, write_atomically
from tanbr.lab import jobs
from tanbr.lab.jobs import Kept, Moved
from tanbr.lab.paper import fig6, online, table1, theorem1, tuned
from tanbr.lab.paper.claim import RULES, Findings, Part
from tanbr.lab.paper.setup import Setup
from tanbr.lab.pictures import png
from tanbr.lab.report import drawing, page
from tanbr.lab.rivals import did_you_mean
from tanbr.types import to_jsonable

PARTS: dict[str, Part] = {  # in the paper's order
    part.name: part
    for part in (
        table1.PART, tuned.FIG2, tuned.FIG3, tuned.TABLE2, online.FIG4, online.FIG5, fig6.PART, tuned.FIG7,
        theorem1.PART,
    )
}  # fmt: skip
ALL = "all"
VERDICTS = {True: ("✓", "holds"), False: ("✗", "does not hold"), None: ("–", "cannot be tested here")}
SCALE_WORDS = {
    "tiny": "the embedded models and generated tasks: this shows that the way from paper to figure works, and which "
    "claims hold on a small scale; it says little of models of the paper's size",
    "small": "small real models and GLUE",
    "paper": "the published size",
}


def chosen(names: list[str]) -> list[Part]:
    """Find parts by their names, in the paper's order; all of them for `all`, or for none."""
    known = (*PARTS, ALL)
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"unknown table or figure {name!r}; {hint}there are {', '.join(PARTS)}, and {ALL}")
    return [part for name, part in PARTS.items() if name in names or not names or ALL in names]


@dataclass(frozen=True)
class Reproduction:
    """What was found."""

    setup: Setup
    findings: Mapping[str, Findings]  # part → what it says
    parts: Sequence[Part]
    jobs: Mapping[str, Sequence[str]]  # part → its jobs
    kept: Mapping[str, Kept]  # job → its result

    @property
    def of_others(self) -> str:
        """Say how many results are of another commit than the code that runs now; nothing if none is."""
        others = Counter(kept.commit for kept in self.kept.values() if kept.commit != jobs.commit())
        counts = ", ".join(f"{count} of {name}" for name, count in others.items())
        return f"{others.total()} of {len(self.kept)} results are of other commits ({counts})" if others else ""


def reproduce(
    parts: Sequence[Part],
    setup: Setup,
    *,
    begun: Callable[[int], None] = lambda _: None,
    moved: Moved = lambda *_: None,
    finished: Callable[[str, Kept, bool], None] = lambda *_: None,
) -> Reproduction:
    """Run each missing job once, and judge the claims."""
    for part in parts:
        setup.check(part.needs, part.name)
    of = {part.name: part.jobs(setup) for part in parts}
    every = {job.name: job for own in of.values() for job in own}  # parts share some
    begun(len(every))
    kept = jobs.run(setup.out / "jobs", every.values(), moved=moved, finished=finished)
    shutil.rmtree(setup.out / "work", ignore_errors=True)  # models and states: everything is measured
    results = {name: one.result for name, one in kept.items()}
    findings = {part.name: part.findings(setup, results) for part in parts}
    return Reproduction(setup, findings, parts, {name: [job.name for job in own] for name, own in of.items()}, kept)


def write(found: Reproduction, *, command: str) -> Path:
    """Write report.html, report.md, results.json and pictures/ into the output folder; the page's path."""
    out = found.setup.out
    check_writable(out / "pictures")
    values = laid_out(found, command=command)
    drawn = [
        (picture, canvas)
        for part in values["parts"]
        for picture, canvas in zip(part["pictures"], found.findings[part["name"]].pictures.values(), strict=True)
    ]
    for picture, canvas in drawn:
        png(canvas, out / picture["file"])
    write_atomically(out / "results.json", json.dumps(to_jsonable(values), indent=1, ensure_ascii=False) + "\n")
    for picture, canvas in drawn:
        picture["svg"] = drawing(canvas)
    write_atomically(out / "report.md", page("paper.md", **values))
    return write_atomically(out / "report.html", page("page.html", **values))


def laid_out(found: Reproduction, *, command: str) -> dict[str, Any]:
    """Lay out everything that a report says, pictures but by their captions and files."""
    setup, scale = found.setup, found.setup.scale.name
    parts = [_part(found, part) for part in found.parts]
    not_run = [part for name, part in PARTS.items() if name not in found.findings]
    counts = Counter(claim["verdict"] for part in parts for claim in part["claims"])
    needed = {need for part in found.parts for need in part.needs}
    models: dict[Literal["model", "t5"], str] = {"model": "BERT-MoE", "t5": "T5-MoE"}
    python = f"Python {platform.python_version()}, torch {torch.__version__.split('+')[0]}"
    in_part = f" in part ({scale}): {', '.join(found.findings)}" if not_run else f" ({scale})"
    return {
        "title": f"The paper, reproduced{in_part}",
        "command": command,
        "scale": scale,
        "scale_words": SCALE_WORDS.get(scale, ""),
        "commit": jobs.commit(),
        "elsewhere": found.of_others,
        "not_run": [{"title": part.title, "command": _command(part, setup)} for part in not_run],
        "models": [f"{kind} {setup.name_of(name)}" for name, kind in models.items() if name in needed],
        "machine": f"{os.cpu_count()} cores ({platform.machine()}), {python}, one thread",
        "counts": [(verdict, mark, counts[verdict]) for mark, verdict in VERDICTS.values()],
        "rules": RULES,
        "minutes": sum(kept.seconds for kept in found.kept.values()) / 60,
        "parts": parts,
    }


def _part(found: Reproduction, part: Part) -> dict[str, Any]:
    findings, kept = found.findings[part.name], [found.kept[name] for name in found.jobs[part.name]]
    seeds = getattr(found.setup.scale, part.seeds, ())
    captions = enumerate(findings.pictures, 1)
    return {
        **{name: getattr(part, name) for name in ("name", "title", "about")},
        "command": _command(part, found.setup),
        "commits": sorted({one.commit for one in kept}),
        "seconds": sum(one.seconds for one in kept),
        "claims": [
            vars(claim) | {"mark": VERDICTS[claim.holds][0], "verdict": VERDICTS[claim.holds][1], "seeds": seeds}
            for claim in findings.claims
        ],
        "tables": [vars(table) for table in findings.tables],
        "pictures": [{"caption": caption, "file": f"pictures/{part.name}-{n}.png"} for n, caption in captions],
    }


def _command(part: Part, setup: Setup) -> str:
    """Give the command that runs a part, with the options it needs; folders are left to the reader."""
    words = [] if setup.embedded else [f"--{need} {need.upper()}" for need in part.needs]
    words += ["--tagged"] if setup.tagged and "t5" in part.needs else []
    return " ".join(["tanbr reproduce", part.name, "--scale", setup.scale.name, *words])
