"""One slot of a simulation, start to end. The server (`learner.py`) takes the same steps, with time between them.

forecast ψ ► ask ► merge and swap ► serve and observe ► reward ► tell ► close the slot
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tanbr.serve.engine import Engine, Said
from tanbr.types import Counts, FloatArray, Reward, Router, SlotMix, SlotRecord, TaskMix, Text

Scorer = Callable[[Said], tuple[Reward, Counts]]  # answers (n,) → reward (V,) and counts (V,)


class MixSource(Protocol):
    """What tells the mix of untagged requests; `monitor.Monitor` is one."""

    def observe(self, texts: Sequence[Text]) -> FloatArray:
        """Read requests: posteriors (n, V)."""
        ...

    def close_slot(self) -> SlotMix:
        """End the slot: its mix, and the forecast for the next."""
        ...


@dataclass
class SlotLoop:
    """A router and a monitor around one engine."""

    engine: Engine
    router: Router
    monitor: MixSource
    tasks: int
    slot: int = 0
    forecast: TaskMix = field(init=False)

    def __post_init__(self) -> None:
        self.forecast = np.full(self.tasks, 1.0 / self.tasks)  # nothing seen yet: every task alike

    def run(self, texts: Sequence[Text], score: Scorer) -> SlotRecord:
        """Serve one slot's requests with the blend chosen for the forecast mix, and learn from their reward."""
        decision = self.router.ask(self.forecast)
        version = self.engine.swap(decision.blend, slot=self.slot)
        reward, counts = score(self.engine.answer(texts))
        self.monitor.observe(texts)
        self.router.tell(decision, reward, counts)
        record = SlotRecord(self.slot, version, self.forecast, decision.blend, reward, counts)
        self.forecast = self.monitor.close_slot().forecast
        self.slot += 1
        return record
