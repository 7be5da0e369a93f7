"""The learner: all that is known when a slot is open, as one value. A step gives the next; to undo it, keep the old."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tanbr.loop.choose import Pin, StartBlend
from tanbr.loop.config import LoopConfig
from tanbr.loop.guard import Guard
from tanbr.loop.holdback import SETTLED, Gain, Toss, gain_of
from tanbr.loop.practice import Exercise, Practice
from tanbr.loop.rewards import Given, Trust
from tanbr.loop.slot import Choice, Phase, Reason, Slot, Version
from tanbr.loop.world import MixSource
from tanbr.monitor.recogniser import Recognition
from tanbr.router.shell import AskTell
from tanbr.router.tanbr import Tanbr
from tanbr.types import FloatArray, TaskMix


@dataclass(frozen=True, eq=False)
class Rules:
    """What does not change from slot to slot."""

    config: LoopConfig
    start: StartBlend
    models: int = 1  # G, most that are served side by side
    seed: int = 0  # of the coins that hold slots back


@dataclass(frozen=True, eq=False)
class Learner:
    """All that is known when a slot is open."""

    rules: Rules
    router: AskTell
    monitor: MixSource
    slot: Slot
    guard: Guard
    trust: Trust
    forecast: TaskMix  # (V,) for the open slot
    settling: tuple[Slot, ...] = ()  # ended slots that the router was not told of yet
    versions: tuple[Version, ...] = ()  # merge versions that are remembered, oldest first
    rewarded: int | None = None  # slot that was opened when the router was last told a reward
    mark: int = 0  # rewards up to this number are in the router's state, as far as their slot was told
    pin: Pin | None = None
    practice: Practice | None = None  # where blends are tried on logged requests
    tosses: tuple[Toss, ...] = ()  # slots that could have been held back, and what they earned, oldest first

    @property
    def phase(self) -> Phase:
        """Who chooses for the next slot: a careful loop explores only while rewards come."""
        config, last = self.rules.config, self.rewarded
        if self.pin is not None:
            return Phase.PINNED
        if config.explore == "never":
            return Phase.FIXED
        if config.hold_back and self.gain is not None and self.gain.harms:
            return Phase.HARMED
        fresh = last is not None and self.slot.number + 1 - last <= config.patience
        return Phase.LEARNING if fresh or config.explore == "always" else Phase.WAITING

    @cached_property
    def gain(self) -> Gain | None:
        """What learning is worth, by the slots that were held back."""
        return gain_of(self.tosses)

    @property
    def chance(self) -> float:
        """That the next slot is held back."""
        return self.rules.config.hold_back * (SETTLED if self.gain is not None and self.gain.pays else 1.0)

    @property
    def good(self) -> list[Version]:
        """The merge versions that may be served again."""
        return [version for version in self.versions if version.good]

    def judged(self) -> tuple[int, str] | None:
        """Name a version that the guard wants to answer no more, and why; None while an operator has chosen."""
        return None if self.pin is not None else self.guard.judged(self.trust, margin=self.rules.config.margin)

    def dismissing(self, version: int, why: str) -> Choice | None:
        """Say what to serve instead of a bad version: the others of its panel, or the newest good one before it."""
        note = f"rolled back: {why}"
        left = self.slot.kept().without(version)
        if left is not None:
            return replace(left, reason=Reason.ROLLED_BACK, note=note)
        good = [one for one in self.good if one.number not in self.slot.versions]
        tasks = len(self.forecast)
        return Choice.one(good[-1].blend, tasks, Reason.ROLLED_BACK, note, good[-1].number) if good else None


def observe(learner: Learner, seen: Recognition | None, rewards: Sequence[Given] = ()) -> Learner:
    """Take in requests that were recognised, and show the guard rewards of the open slot."""
    if seen is not None and len(seen):
        monitor = learner.monitor.fork()
        monitor.count(seen)
        learner = replace(learner, monitor=monitor)
    guard, slot = learner.guard, learner.slot
    for row in rewards:
        if row.counts and row.slot == slot.number and row.place < len(slot.versions):
            share = learner.trust.of(row.client) * row.share(learner.forecast)
            guard = guard.seen(slot.versions[row.place], share, row.reward, row.client)
    return replace(learner, guard=guard)


def begun(router: AskTell, tasks: int) -> Practice | None:
    """Begin to practise, if a router can learn from it."""
    if not isinstance(router, Tanbr) or not router.practises:
        return None
    own = router.known.own
    return Practice(router.experts, tasks, believed=own if own.any() else None)


def exercise(learner: Learner) -> Exercise | None:
    """Say what to practise next; None if there is nothing to try, or nothing to try it on."""
    practice, rules = learner.practice, learner.rules
    if practice is None or not practice.rows or learner.pin is not None or rules.config.explore == "never":
        return None
    confusion = learner.monitor.confusion if rules.models > 1 else None  # takes a second
    return practice.next(learner.router, learner.forecast, models=rules.models, confusion=confusion)


def practised(learner: Learner, done: Exercise, earned: FloatArray) -> Learner:
    """Take in what the rows of an exercise have earned, and may have (2, n)."""
    if learner.practice is None:
        return learner
    router = learner.router.fork()
    practice = learner.practice.learned(done, earned, router=router, slot=learner.slot.number)
    return replace(learner, router=router, practice=practice)
