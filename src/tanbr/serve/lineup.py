"""The models that answer, and those that are ready to."""

from dataclasses import dataclass, field

from tanbr.serve.assignment import Assignment
from tanbr.serve.backends import Backend
from tanbr.types import Blend


@dataclass(frozen=True, eq=False)
class Live:
    """A model that answers: a backend, the version of the blend in it, and what its answers are credited to."""

    backend: Backend = field(repr=False)
    version: int
    blend: Blend | None  # (K,); None before the first swap
    slot: int = 0
    place: int = 0  # among the models of the slot, also where some of these do not answer
    answered: bool = True  # False: it was merged for a look, and has answered nobody


@dataclass(frozen=True, eq=False)
class Staged:
    """A blend that is ready to answer and does not yet."""

    backend: Backend | None = field(repr=False)  # that it was merged into; None where it will be merged in place
    version: int
    blend: Blend  # (K,)
    changed: bool  # False: this blend answers already


@dataclass(frozen=True, eq=False)
class Lineup:
    """The models that answer, and which request goes to which: one value, replaced as a whole."""

    models: tuple[Live, ...]  # G, one at least
    assignment: Assignment | None = field(default=None, repr=False)  # of G models; None: the first answers everything

    def without(self, place: int) -> "Lineup":
        """Leave one model out: its requests go to the others."""
        left = None if self.assignment is None else self.assignment.without(place)
        return Lineup(self.models[:place] + self.models[place + 1 :], left)
