"""A part of the paper (a table or figure): jobs that measure, and claims that hold or do not, by a written rule."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from matplotlib.figure import Figure

from tanbr.lab.intervals import Spread
from tanbr.lab.jobs import Job
from tanbr.lab.paper.setup import Setup

Results: TypeAlias = Mapping[str, Any]  # job → its result
OURS = {"paper": "Algorithm 1 as printed", "tanbr": "this project's default mode"}  # both are judged
EQUAL = 0.1  # figures that differ by no more than this share of the paper's are the same
RULES = (
    "A difference over the seeds holds if it is above 0 by more than its 95% interval (Student's), a reduction if it "
    "is at least nine tenths of the paper's, a figure if it is within a tenth of the paper's, and any other claim if "
    "all that it says is true of the figures."
)


@dataclass(frozen=True)
class Claim:
    """One claim of the paper beside what came out here."""

    says: str  # in words
    paper: str  # its figure
    ours: str
    holds: bool | None  # None if it cannot be tested here
    reason: str = ""  # why it came out so, or why it cannot be tested


@dataclass(frozen=True)
class Table:
    """Cells as they are printed; the first column is names."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Findings:
    """What a part says."""

    claims: Sequence[Claim]
    tables: Sequence[Table] = ()
    pictures: Mapping[str, Figure] = field(default_factory=dict)  # caption → picture


@dataclass(frozen=True)
class Part:
    """A table or figure of the paper."""

    name: str
    title: str
    about: str  # what is measured, and how, in a sentence or two
    jobs: Callable[[Setup], list[Job]]
    findings: Callable[[Setup, Results], Findings]
    needs: tuple[str, ...] = ()  # of `Setup`: what must be named at a larger scale
    seeds: str = "seeds"  # of `Scale`: which seeds its jobs have


def above(difference: Spread) -> bool:
    """Judge "A is above B"."""
    return difference.mean > max(0.0, difference.half)


def reduced(ours: float, paper: float) -> bool:
    """Judge "A is less than B by so much", both as shares of B."""
    return ours >= (1 - EQUAL) * paper


def same(ours: float, paper: float, *, share: float = EQUAL) -> bool:
    """Judge a figure that should be the same, whichever way it differs."""
    return abs(ours - paper) <= share * abs(paper)
