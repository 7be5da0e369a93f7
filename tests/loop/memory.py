"""A world in memory: nothing is merged, rewards are as the test gives them, and what is done is noted in order."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tanbr.loop.choose import StartBlend
from tanbr.loop.config import LoopConfig
from tanbr.loop.guard import Probes
from tanbr.loop.learner import Learner, Rules
from tanbr.loop.rewards import Given, Tally
from tanbr.loop.slot import Choice, Slot, Turn
from tanbr.loop.turn import first
from tanbr.types import Decision, FloatArray, SlotMix

K = V = 2
MIX = np.array([0.75, 0.25])
EVEN, ONE, TWO = np.array([0.5, 0.5]), np.array([1.0, 0.0]), np.array([0.0, 1.0])


@dataclass(frozen=True, eq=False)
class Merged:
    version: int
    blend: FloatArray
    changed: bool = True


@dataclass
class Memory:
    """The world. `fails` names a step that raises, `once` if only the first time.

    A blend in `bad` does badly at its probes, one in `nan` answers with NaN.
    """

    given: list[Given] = field(default_factory=list)
    by_itself: dict[int, dict[int, Tally]] = field(default_factory=dict)  # slot → place → what was measured
    live: tuple[Merged, ...] = ()
    prepared: list[Merged] = field(default_factory=list)
    issued: int = 0
    fails: str = ""
    once: bool = False
    bad: tuple[FloatArray, ...] = ()
    nan: tuple[FloatArray, ...] = ()
    done: list[str] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    slots: dict[int, Slot] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)
    asked_texts: int = 0

    def _do(self, step: str) -> None:
        self.done.append(step)
        if self.fails == step:
            self.fails = "" if self.once else step
            raise OSError(f"{step} failed")

    def give(self, slot: int, reward: float, count: int = 1, **more: Any) -> None:
        """Have nobody in particular reward requests of a slot's first model, for the first task."""
        for _ in range(count):
            row = Given(len(self.given) + 1, slot, 0, "feedback", 0, reward)
            self.given.append(replace(row, **more))

    def last_reward(self) -> int:
        self._do("mark")
        return len(self.given)

    def rewards(self, *, after: int, upto: int, slot: int | None = None) -> list[Given]:
        return [row for row in self.given if after < row.seq <= upto and slot in (None, row.slot)]

    def measured(self, slot: int) -> dict[int, Tally]:
        return self.by_itself.get(slot, {})

    def texts(self, ids: Sequence[bytes]) -> dict[bytes, Any]:
        self.asked_texts += 1
        return {key: key.decode() for key in ids}

    def ended(self, number: int) -> Slot | None:
        return self.slots.get(number)

    def answering(self, slot: Slot) -> Choice | None:
        if not self.live:
            return None
        if [one.version for one in self.live] == list(slot.versions):
            return slot.kept()
        return Choice.one(self.live[0].blend, V, slot.kept().reason, version=self.live[0].version)

    def prepare(self, blend: FloatArray, version: int | None) -> Merged:
        self._do("prepare")
        for one in self.live:
            if np.array_equal(one.blend, blend):
                return replace(one, changed=False)
        if version is None:
            self.issued += 1
        self.prepared.append(Merged(version or self.issued, blend))
        return self.prepared[-1]

    def probe(self, prepared: Merged, *, fully: bool) -> Probes:
        self._do("probe")
        if any(np.array_equal(prepared.blend, one) for one in self.nan):
            return Probes(None, np.zeros(0, dtype=np.intp))
        if not fully:
            return Probes(np.zeros(0), np.zeros(0, dtype=np.intp))
        bad = any(np.array_equal(prepared.blend, one) for one in self.bad)
        return Probes(np.full(32, 0.1 if bad else 0.9), np.repeat(np.arange(V), 16), "probes")

    def discard(self) -> None:
        self.prepared.clear()

    def write(self, turn: Turn, learner: Learner) -> None:
        self._do("write")
        self.turns.append(turn)
        self.slots |= {one.slot.number: replace(one.slot, decision=None) for one in turn.told if not one.late}

    def commit(self, prepared: Sequence[Merged], learner: Learner) -> None:
        self._do("commit")
        self.prepared.clear()
        self.live = tuple(replace(one, changed=False) for one in prepared)

    def alarm(self, text: str) -> None:
        self.alarms.append(text)


class Steady:
    """Traffic that holds one mix."""

    confusion, tasks = np.eye(V), ("first", "second")

    def __init__(self) -> None:
        self.closed = 0

    def count(self, seen: Any) -> None:
        pass

    def close_slot(self) -> SlotMix:
        self.closed += 1
        return SlotMix(MIX, MIX, np.zeros(V), 0.0, 8)

    def fork(self) -> "Steady":
        return copy.copy(self)


class Scripted:
    """A router that chooses blends in a row, again and again, and notes what it hears.

    `fails` names a method of all routers that raises.
    """

    fails = ""

    def __init__(self, *panels: Any) -> None:
        self.panels = [np.atleast_2d(panel) for panel in panels or (ONE, TWO)]
        self.asked = 0
        self.told: list[tuple[int, Any, Any]] = []
        self.warm: list[tuple[Any, Any, Any]] = []
        self.declined: list[int] = []

    def _do(self, step: str) -> None:
        if type(self).fails == step:
            raise RuntimeError(f"{step} failed")

    def fork(self) -> "Scripted":
        return copy.deepcopy(self)

    def ask(self, task_mix: Any, *, models: int = 1, confusion: Any = None) -> Decision:
        self._do("ask")
        blends = self.panels[self.asked % len(self.panels)][:models]
        self.asked += 1
        return Decision(self.asked - 1, np.asarray(task_mix), blends, np.eye(V)[: len(blends)] + 0.5)

    def tell(self, decision: Decision, reward: Any, counts: Any = None) -> None:
        self._do("tell")
        self.told.append((decision.id, np.asarray(reward), counts))

    def warm_start(self, blends: Any, rewards: Any, counts: Any) -> None:
        self.warm.append((blends, rewards, counts))

    def decline(self, decision: Decision) -> None:
        self.declined.append(decision.id)


def opened(world: Memory, router: Any, *, models: int = 1, monitor: Any = None, **settings: Any) -> Learner:
    """Open the first slot of a loop whose router is asked from the first slot on, and told at once."""
    usual = {"explore": "always", "rewards": {"settle_slots": 0}}
    monitor, experts = monitor or Steady(), getattr(router, "experts", K)
    rules = Rules(LoopConfig.model_validate(usual | settings), StartBlend("even", experts=experts), models)
    return first(rules, world, router=router, monitor=monitor, tasks=len(monitor.tasks))
