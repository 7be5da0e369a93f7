"""All asked-for parts from beginning to end: run what is missing, judge, and write the report."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from tanbr.lab.paper.cost import Cost, Speed
from tanbr.lab.paper.job import Job, Kept, Watch, commit, load, run
from tanbr.lab.paper.part import Findings, Part
from tanbr.lab.paper.scale import Setup


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
        return sorted({self.kept[job].commit for job in self.jobs[part]})

    def seconds(self, part: str) -> float:
        """Add up what a part's jobs took, wherever they ran first."""
        return sum(self.kept[job].seconds for job in self.jobs[part])

    @property
    def elsewhere(self) -> dict[str, list[str]]:
        """Jobs whose results are of another commit than the code that runs now."""
        found: dict[str, list[str]] = {}
        for name, kept in self.kept.items():
            if kept.commit != commit():
                found.setdefault(kept.commit, []).append(name)
        return found

    @property
    def of_others(self) -> str:
        """Say so in words; nothing where all results are of this code."""
        there = self.elsewhere
        counts = ", ".join(f"{len(jobs)} of {name}" for name, jobs in there.items())
        count = sum(map(len, there.values()))
        return f"{count} of {len(self.kept)} results are of other commits ({counts})" if there else ""


def reproduce(parts: Sequence[Part], setup: Setup, *, watch: Watch | None = None) -> Reproduction:
    """Run the jobs of all parts that are missing, each once, and judge the claims."""
    for part in parts:
        setup.check(part.needs, part.name)
    torch.set_num_threads(1)  # sums are the same on every machine, and a neighbour's load matters less
    of = {part.name: part.jobs(setup) for part in parts}
    kept = run([job for jobs in of.values() for job in jobs], out=setup.out, watch=watch)
    shutil.rmtree(setup.out / "work", ignore_errors=True)  # models and states: everything is measured
    results = {name: one.result for name, one in kept.items()}
    findings = {part.name: part.findings(setup, results) for part in parts}
    return Reproduction(setup, findings, parts, {name: [job.name for job in jobs] for name, jobs in of.items()}, kept)


@dataclass(frozen=True)
class Estimate:
    """What a part will take from now on."""

    part: str
    jobs: int
    missing: int
    seconds: float
    memory: float  # bytes
    disk: float  # bytes


def missing(parts: Sequence[Part], setup: Setup) -> dict[str, list[Job]]:
    """List each part's jobs that are not done, each under the first part that needs it."""
    seen: set[str] = set()
    found: dict[str, list[Job]] = {}
    for part in parts:
        own = {job.name: job for job in part.jobs(setup)}
        found[part.name] = [job for job in own.values() if job.name not in seen and load(setup.out, job) is None]
        seen |= set(own)
    return found


def estimate(parts: Sequence[Part], setup: Setup, *, speed: Speed) -> list[Estimate]:
    """Estimate time, memory and disk of what is missing, from sizes and this machine's speed."""
    rows = []
    for part, (name, jobs) in zip(parts, missing(parts, setup).items(), strict=True):
        total = sum((job.cost for job in jobs), Cost())
        rows.append(Estimate(name, len(part.jobs(setup)), len(jobs), speed.seconds(total), total.memory, total.disk))
    return rows
