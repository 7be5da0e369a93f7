"""What a slot serves, and what is known of the merge versions it may serve: plain frozen values."""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from tanbr.router.panel import Readings, group_mixes
from tanbr.types import Blend, Decision, FloatArray, SlotMix, SlotRecord, TaskMix


class Phase(StrEnum):
    """Who chooses the blend at the moment."""

    WAITING = "waiting for rewards"  # the start blend is served: nothing is known that speaks for another
    LEARNING = "learning"  # the router chooses
    PINNED = "pinned"  # an operator has chosen
    FIXED = "fixed"  # the start blend is served whatever comes: `explore` is "never"
    HARMED = "learning has cost reward"  # the start blend is served again: slots that were held back earned more


class Reason(StrEnum):
    """Why a slot serves the blend it does."""

    CHOSEN = "chosen"  # by the router
    START = "start"  # the start blend: there are no rewards (yet, or any more), or nothing is to be explored
    BEST = "best"  # what is expected to be best, without optimism: rewards have stopped
    HELD_BACK = "held back"  # the start blend, by the toss of a coin: to compare with
    KEPT = "kept"  # the old blend: the guard refused the new ones
    PINNED = "pinned"  # by an operator
    ROLLED_BACK = "rolled back"  # by an operator or the guard
    FAILED = "failed"  # the turn failed: the old blend goes on
    GONE = "gone"  # its blend used an expert that a later server does not have: the rest of the blend is shown


@dataclass(frozen=True, eq=False)
class Version:
    """A merge version and what it has earned."""

    number: int
    blend: Blend  # (K,)
    sums: FloatArray  # (V,) of rewards
    counts: FloatArray  # (V,)
    good: bool = True  # False: it was refused while it answered, and is not served again


@dataclass(frozen=True, eq=False)
class Choice:
    """What to serve next, G different blends, and why."""

    blends: FloatArray  # (G, K)
    estimates: FloatArray  # (G, V) what each task is taken to earn at each model
    reason: Reason
    note: str = ""
    versions: tuple[int | None, ...] = ()  # (G,) numbers of blends that had one before; empty if none had
    decision: Decision | None = None  # the router's, if it is its choice
    chance: float | None = None  # that the slot is held back; None if no coin was tossed for it

    @classmethod
    def one(cls, blend: Blend, tasks: int, reason: Reason, note: str = "", version: int | None = None) -> "Choice":
        """Choose one blend (K,) for everything."""
        return cls(np.asarray(blend)[None], np.ones((1, tasks)), reason, note, (version,))

    @classmethod
    def of(cls, decision: Decision) -> "Choice":
        """Take what the router chose."""
        return replace(cls.panel(decision.blends, decision.estimates, Reason.CHOSEN), decision=decision)

    @classmethod
    def panel(cls, blends: FloatArray, estimates: FloatArray, reason: Reason, note: str = "") -> "Choice":
        """Choose a panel; equal blends become one model, which is as good for a task as the better of them."""
        alike = (blends[:, None] == blends).all(axis=2)  # (G, G)
        rows = np.unique(alike.argmax(axis=1))
        return cls(blends[rows], np.array([estimates[alike[row]].max(axis=0) for row in rows]), reason, note)

    def without(self, version: int) -> "Choice | None":
        """Leave one version out; None if nothing is left."""
        rows = [row for row, number in enumerate(self.versions) if number != version]
        if not rows:
            return None
        versions = tuple(self.versions[row] for row in rows)
        return replace(self, blends=self.blends[rows], estimates=self.estimates[rows], versions=versions)


@dataclass(frozen=True, eq=False)
class Slot:
    """A slot that is being served, or whose rewards are still to come."""

    number: int
    versions: tuple[int, ...]  # (G,) merge versions of its models
    task_mix: TaskMix  # (V,) forecast that it was opened with
    blends: FloatArray  # (G, K) as served
    estimates: FloatArray  # (G, V) what each task is taken to earn at each model
    decision: Decision | None  # the router's, if it is its choice
    reason: Reason
    note: str = ""
    held: TaskMix | None = None  # (V,) mix that it turned out to hold; None while it is open
    chance: float | None = None  # that it would be held back, whatever came of it; None if no coin was tossed

    @classmethod
    def of(cls, choice: Choice, *, number: int, versions: tuple[int, ...], task_mix: TaskMix) -> "Slot":
        """Open a slot with what was chosen."""
        return cls(**{**vars(choice), "number": number, "versions": versions, "task_mix": task_mix})

    @property
    def mix(self) -> TaskMix:
        """The mix (V,) that it held, as far as that is known; else the forecast."""
        return self.task_mix if self.held is None else self.held

    @property
    def blend(self) -> Blend:
        """Blend (K,) of the first model."""
        return np.asarray(self.blends[0])

    @property
    def panel(self) -> Decision:
        """Its models, and which request goes to which."""
        return Decision(-1, self.task_mix, self.blends, self.estimates)

    def mixes(self, mix: TaskMix) -> FloatArray:
        """The mix of the tasks that each model answers (G, V), of a mix (V,)."""
        return group_mixes(self.estimates, Readings.of(mix))

    def kept(self) -> Choice:
        """Serve on what this slot serves."""
        return Choice(self.blends, self.estimates, Reason.KEPT, versions=self.versions)


@dataclass(frozen=True, eq=False)
class Told:
    """What the router is told of a slot."""

    slot: Slot
    rewards: FloatArray  # (G, V) of each model, NaN where unseen
    counts: FloatArray  # (G, V)
    shares: dict[str, float]  # source → its share of the rewards
    late: bool = False  # whether these are rewards that came after the slot was told

    @property
    def record(self) -> SlotRecord:
        """The slot, start to end, over all its models."""
        slot, counts = self.slot, self.counts.sum(axis=0)
        sums = np.where(self.counts > 0, self.rewards * self.counts, 0.0).sum(axis=0)
        reward = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
        if len(slot.versions) == 1:
            reward = self.rewards[0]
        return SlotRecord(slot.number, slot.versions[0], slot.task_mix, slot.blend, reward, counts)


@dataclass(frozen=True, eq=False)
class Turn:
    """From one slot to the next: what a world writes down."""

    opened: Slot
    ended: Slot | None  # None before the first
    mix: SlotMix | None  # of the ended slot
    told: tuple[Told, ...] = ()
    bad: tuple[int, ...] = ()  # merge versions that proved bad
