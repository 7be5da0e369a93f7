"""One method in a comparison: a router, what tells it the mix, and what serves its blends, slot by slot.

A slot takes the steps of the server's: ask ► merge and swap ► serve and observe ► reward ► tell ► forecast.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from tanbr.monitor.belief import by_mix
from tanbr.tasks.metrics import Answer, LabelSpace
from tanbr.tasks.rows import Row
from tanbr.types import Counts, FloatArray, Reward, Router, SlotMix, SlotRecord, TaskMix, Text

Answering: TypeAlias = Callable[
    [Sequence[Answer], FloatArray], list[Answer]
]  # with posteriors (n, V) by the slot's mix


def as_given(answers: Sequence[Answer], posteriors: FloatArray) -> list[Answer]:  # noqa: ARG001
    """Take answers as the model gave them."""
    return list(answers)


@dataclass(frozen=True, eq=False)
class Scorer:
    """What alone sees a slot's tags and targets."""

    space: LabelSpace
    rows: Sequence[Row]
    collect: Callable[[Sequence[Row], FloatArray], None] | None = None  # also hears what was answered (n,)

    def rewards(self, answers: Sequence[Answer]) -> FloatArray:
        """Reward each answer in [0, 1] (n,)."""
        meant = self.space.read(self.rows, answers)
        if self.collect:
            self.collect(self.rows, meant)
        return self.space.rewards(self.rows, meant)

    def by_task(self, rewards: FloatArray, among: FloatArray | None = None) -> tuple[Reward, Counts]:
        """Average rewards (n,) by task, `among` some of the requests (n,) only: reward (V,) and counts (V,)."""
        chosen = range(len(self.rows)) if among is None else np.flatnonzero(among).tolist()
        return self.space.slot_reward([self.rows[i] for i in chosen], rewards[list(chosen)])


class MixSource(Protocol):
    """What tells the mix of untagged requests; `monitor.Monitor` is one."""

    @property
    def confusion(self) -> FloatArray | None:
        """Share of each task's requests that is read as each task (V, V); None if all are read rightly."""
        ...

    def observe(self, texts: Sequence[Text]) -> FloatArray:
        """Read requests: posteriors (n, V)."""
        ...

    def close_slot(self) -> SlotMix:
        """End the slot: its mix, and the forecast for the next."""
        ...


class Server(Protocol):
    """What answers under the blend it was given last."""

    def swap(self, blend: ArrayLike) -> int:
        """Serve a blend (K,); the merge version that now answers."""
        ...

    def answers(self, texts: Sequence[Text]) -> list[Answer]:
        """Answer texts."""
        ...


class Contestant(Protocol):
    """What `compare` lets play."""

    @property
    def slot(self) -> int:
        """The slot that comes next."""
        ...

    def play(self, texts: Sequence[Text], scorer: Scorer) -> SlotRecord:
        """Serve one slot's requests, and learn from their reward."""
        ...


@dataclass
class OneModel:
    """A router that serves one merged model."""

    server: Server
    router: Router
    monitor: MixSource
    tasks: int
    answering: Answering = as_given
    slot: int = 0
    forecast: TaskMix = field(init=False)

    def __post_init__(self) -> None:
        self.forecast = np.full(self.tasks, 1.0 / self.tasks)  # nothing seen yet: every task alike

    def play(self, texts: Sequence[Text], scorer: Scorer) -> SlotRecord:
        """Serve one slot's requests with the blend chosen for the forecast mix, and learn from their reward."""
        decision = self.router.ask(self.forecast)
        version = self.server.swap(decision.blend)
        posteriors = by_mix(self.monitor.observe(texts), self.forecast)
        reward, counts = scorer.by_task(scorer.rewards(self.answering(self.server.answers(texts), posteriors)))
        self.router.tell(decision, reward, counts)
        record = SlotRecord(self.slot, version, self.forecast, decision.blend, reward, counts)
        self.forecast = self.monitor.close_slot().forecast
        self.slot += 1
        return record
