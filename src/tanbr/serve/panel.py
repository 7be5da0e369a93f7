"""The models that answer, those that are ready to, which request goes to which model, and what the learner hears."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tanbr.monitor.recogniser import Recogniser, Recognition
from tanbr.serve.backends import Backend
from tanbr.types import Blend, Decision, FloatArray, Text

VERSION = "tanbr-v"  # and the number of a merge version: what clients call it
NOT_CHOSEN = 255  # place of a model that a client named: no slot has so many, and none is credited with its answers
LEAST_SHARE = 1e-3  # of a task in the mix: a task that is not forecast may still come


@dataclass(frozen=True, eq=False)
class Assignment:
    """The decision of a slot and the recogniser that was taken when it opened; neither ever changes."""

    decision: Decision
    recogniser: Recogniser

    def places(self, seen: Recognition, named: FloatArray | None = None) -> NDArray[np.intp]:
        """Choose the model (n,) of each request; `named` (V,) marks the tasks that the client named, if it did."""
        known = np.where(seen.novel[:, None], 0.0, seen.posteriors) if named is None else within(seen.posteriors, named)
        return self.decision.assign(known)

    def posteriors(self, seen: Recognition, named: FloatArray | None = None) -> FloatArray:
        """What is known of each request's task (n, V), with the slot's mix for a prior."""
        weighed = seen.posteriors * np.maximum(self.decision.task_mix, LEAST_SHARE) * (1.0 if named is None else named)
        total = weighed.sum(axis=1, keepdims=True)
        return np.asarray(weighed / np.maximum(total, 1e-300))

    def without(self, *places: int) -> "Assignment":
        """Leave some models out."""
        left = {name: np.delete(getattr(self.decision, name), places, axis=0) for name in ("blends", "estimates")}
        return replace(self, decision=replace(self.decision, **left))


@dataclass(frozen=True, eq=False)
class Live:
    """A model that answers: a backend, the version of the blend in it, and the slot its answers are credited to."""

    backend: Backend = field(repr=False)
    version: int
    blend: Blend | None  # (K,); None before the first swap
    slot: int = 0
    place: int = 0  # among the models of the slot, also where some of these do not answer
    answered: bool = True  # False: it was merged to be checked, and has answered no request


@dataclass(frozen=True, eq=False)
class Staged:
    """A blend that is ready to answer and does not yet."""

    backend: Backend | None = field(repr=False)  # that it was merged into; None where it will be merged in place
    version: int
    blend: Blend  # (K,)
    changed: bool  # False: this blend answers already


@dataclass(frozen=True, eq=False)
class Panel:
    """The models that answer, and which request goes to which: one value, replaced as a whole."""

    models: tuple[Live, ...]  # G, at least one
    assignment: Assignment | None = field(default=None, repr=False)  # of G models; None: the first answers everything

    def without(self, place: int) -> "Panel":
        """Leave one model out: its requests go to the others."""
        left = None if self.assignment is None else self.assignment.without(place)
        return Panel(self.models[:place] + self.models[place + 1 :], left)


def within(posteriors: FloatArray, named: FloatArray) -> FloatArray:
    """Believe a client that names tasks (V,), 1 or 0 each: what the text says (n, V), among these alone."""
    inside = posteriors * named
    total = inside.sum(axis=1, keepdims=True)
    return np.where(total > 0, inside / np.maximum(total, 1e-300), named / named.sum(axis=-1, keepdims=True))


def believed(seen: Recognition, named: FloatArray) -> Recognition:
    """Believe clients that name tasks (n, V), 1 or 0 each: what is known of their requests then."""
    familiarity = np.where(named.all(axis=1), seen.familiarity, np.maximum(seen.familiarity, 0.0))
    informed = seen.informed or bool((named.sum(axis=1) == 1).all())
    return replace(seen, posteriors=within(seen.posteriors, named), familiarity=familiarity, informed=informed)


@dataclass(frozen=True, eq=False)
class Answers:
    """Texts that one merge version answered; the learner is told before the clients are."""

    version: int
    slot: int  # that they are credited to
    ids: tuple[bytes, ...]  # (n,) raw request ids
    texts: tuple[Text, ...]
    logits: FloatArray | None = None  # (n, columns) of a classifier
    place: int = 0  # of the model among those of its slot
    seen: Recognition | None = None  # what was read from the texts already, if it was
    named: FloatArray | None = None  # (n, V) 1 for the tasks that each client has named; None if nobody has


@dataclass(frozen=True)
class Broken:
    """A merge version that answers with NaN; the replica has gone back to the one before, if it still had it."""

    version: int
    slot: int


Message: TypeAlias = Answers | Broken
Outbox: TypeAlias = Callable[[Message], object]  # takes what a replica says; quick, never blocks
