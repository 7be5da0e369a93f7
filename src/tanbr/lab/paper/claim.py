"""A part of the paper (a table or figure): jobs that measure, and claims judged from figures by a written rule."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from matplotlib.figure import Figure

from tanbr.lab.intervals import Spread
from tanbr.lab.jobs import Job
from tanbr.lab.paper.setup import Setup

Verdict: TypeAlias = Literal["reproduced", "partly", "not", "cannot be tested here"]
Results: TypeAlias = Mapping[str, Any]  # job → its result
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
OURS = {"paper": "Algorithm 1 as printed", "tanbr": "this project's default mode"}  # both are judged
EQUAL = 0.1  # figures that differ by no more than this share of the paper's are the same


@dataclass(frozen=True)
class Judgement:
    """A verdict and the rule it follows by."""

    verdict: Verdict
    rule: str


@dataclass(frozen=True)
class Claim:
    """One claim of the paper beside what came out here."""

    says: str  # in words
    paper: str  # its figure
    ours: str
    judgement: Judgement
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


def _graded(rule: str, *, yes: bool, partly: bool) -> Judgement:
    return Judgement("reproduced" if yes else "partly" if partly else "not", rule)


def above(difference: Spread) -> Judgement:
    """Judge "A is above B"."""
    rule = (
        "reproduced if the mean difference over the seeds is above 0 by more than its 95% interval (Student's), "
        "partly if it is above 0, else not"
    )
    return _graded(rule, yes=difference.mean > max(0.0, difference.half), partly=difference.mean > 0)


def reduction(ours: float, paper: float) -> Judgement:
    """Judge "A is less than B by so much", both as shares of B."""
    least = (1 - EQUAL) * paper
    rule = (
        f"reproduced if the reduction is at least {least:.0%} (nine tenths of the paper's {paper:.0%}), "
        "partly if it is above 0, else not"
    )
    return _graded(rule, yes=ours >= least, partly=ours > 0)


def about(ours: float, paper: float, *, share: float = EQUAL) -> Judgement:
    """Judge a figure that should be the same, whichever way it differs."""
    rule = (
        f"reproduced within {share:.0%} of the paper's figure, partly if it differs by less than half of it, else not"
    )
    off = abs(ours - paper) / abs(paper)
    return _graded(rule, yes=off <= share, partly=off < 0.5)


def below(ours: float, limit: float, *, unit: str = "") -> Judgement:
    """Judge "never above a limit"."""
    rule = f"reproduced if at most {limit:g}{unit}, partly if at most twice that, else not"
    return _graded(rule, yes=ours <= limit, partly=ours <= 2 * limit)


def checks(found: Mapping[str, bool]) -> Judgement:
    """Judge a claim of several statements, each true or false of the figures."""
    rule = f"reproduced if all of these hold, partly if some do, else not: {'; '.join(found)}"
    return _graded(rule, yes=all(found.values()), partly=any(found.values()))


def untested() -> Judgement:
    """Say that there is nothing to judge by."""
    return Judgement("cannot be tested here", "no figure at this scale answers the claim; the reason is given")
