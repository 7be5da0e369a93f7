"""What a table or figure of the paper is here: jobs that measure, and what their results say."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from matplotlib.figure import Figure

from tanbr.lab.paper.claim import Claim
from tanbr.lab.paper.job import Job
from tanbr.lab.paper.scale import Setup

Results: TypeAlias = Mapping[str, Any]  # job → its result


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
