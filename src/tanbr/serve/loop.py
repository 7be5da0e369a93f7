"""One slot, start to end: the only place where the flow closes. Simulations and the server take the same steps.

close the last slot ► forecast ψ ► ask ► merge and swap ► serve and observe ► reward ► tell
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tanbr.serve.engine import Engine, Said, Staged
from tanbr.types import Blend, Counts, Decision, FloatArray, Reward, Router, SlotMix, SlotRecord, TaskMix, Text

Scorer = Callable[[Said], tuple[Reward, Counts]]  # answers (n,) → reward (V,) and counts (V,)


class MixSource(Protocol):
    """What tells the mix of untagged requests; `monitor.Monitor` is one."""

    def observe(self, texts: Sequence[Text]) -> FloatArray:
        """Read requests: posteriors (n, V)."""
        ...

    def close_slot(self) -> SlotMix:
        """End the slot: its mix, and the forecast for the next."""
        ...


@dataclass(frozen=True, eq=False)
class OpenSlot:
    """A slot that is being served, or whose reward is still to come."""

    slot: int
    merge_version: int
    task_mix: TaskMix  # (V,) forecast that it was opened with
    blend: Blend  # (K,) as served
    decision: Decision | None  # the router's, if the blend is its choice
    note: str = ""  # why it is not


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
        opened = self.open(self.ask())
        reward, counts = score(self.engine.answer(texts))
        self.monitor.observe(texts)
        record = self.settle(opened, reward, counts)
        self.close()
        return record

    def ask(self) -> Decision:
        """Let the router choose for the forecast mix."""
        return self.router.ask(self.forecast)

    def open(
        self,
        decision: Decision | None,
        *,
        blend: Blend | None = None,
        version: int | None = None,
        note: str = "",
        before: Callable[[OpenSlot, Staged], None] | None = None,
    ) -> OpenSlot:
        """Serve a decision's blend, or another; `before` may still refuse it by raising."""
        chosen = blend if decision is None else decision.blend
        if chosen is None:
            raise ValueError("a slot needs a decision or a blend")

        def opened(version: int) -> OpenSlot:
            return OpenSlot(self.slot, version, self.forecast, chosen, decision, note)

        if before is None:
            return opened(self.engine.swap(chosen, version=version, slot=self.slot))
        staged = self.engine.prepare(chosen, version=version)
        try:
            before(opened(staged.version), staged)
        except BaseException:
            self.engine.discard(staged)
            raise
        return opened(self.engine.commit(staged, slot=self.slot).version)

    def settle(self, opened: OpenSlot, reward: Reward, counts: Counts) -> SlotRecord:
        """Tell the router the reward of a slot; a slot that it did not choose teaches it as a warm start."""
        if opened.decision is not None:
            self.router.tell(opened.decision, reward, counts)
        elif (counts > 0).any() and hasattr(self.router, "warm_start"):
            self.router.warm_start([opened.blend], [reward], [counts])
        return SlotRecord(opened.slot, opened.merge_version, opened.task_mix, opened.blend, reward, counts)

    def close(self) -> SlotMix:
        """End the slot: what it held, and the forecast for the next."""
        mix = self.monitor.close_slot()
        self.forecast = mix.forecast
        self.slot += 1
        return mix
