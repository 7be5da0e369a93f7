"""Sources of the task mix that are told the truth, for bounds and for what misreading costs."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tanbr.monitor.recogniser import Recognition
from tanbr.types import FloatArray, SlotMix, Text


@dataclass(frozen=True, eq=False)
class Told:
    """A recogniser that is told what requests are."""

    posteriors: Callable[[Sequence[Text]], FloatArray]  # texts → (n, V)

    def recognise(self, texts: Sequence[Text]) -> Recognition:
        """Recognise requests."""
        keys, known = np.arange(len(texts), dtype=np.uint64), self.posteriors(texts)
        return Recognition(keys, known, np.zeros(len(texts)), informed=True)


class Oracle:
    """A mix source that is told the true mixes (T, V), every text's task, or both; a monitor says the rest.

    Without a monitor or tasks all requests are like the mix.
    """

    def __init__(
        self, monitor: Any = None, *, mixes: FloatArray | None = None, task_of: Mapping[Text, int] | None = None
    ) -> None:
        self._monitor, self._mixes, self._task_of, self.slot = monitor, mixes, task_of, 0

    def fork(self) -> "Oracle":
        """Give an independent copy."""
        twin = copy.copy(self)
        twin._monitor = None if self._monitor is None else self._monitor.fork()
        return twin

    @property
    def confusion(self) -> FloatArray | None:
        """The monitor's; nothing is misread where tasks are told."""
        return None if self._monitor is None or self._task_of is not None else self._monitor.confusion

    def snapshot(self) -> Any:
        """Give what recognises requests."""
        if self._task_of is not None:
            task_of = self._task_of
            tasks = 1 + max(task_of.values())
            return Told(lambda texts: np.eye(tasks)[[task_of[text] for text in texts]])
        if self._monitor is not None:
            return self._monitor.snapshot()
        mix = self._mix(self.slot)
        return Told(lambda texts: np.tile(mix, (len(texts), 1)))

    def count(self, seen: Recognition) -> None:
        """Take in requests."""
        if self._monitor is not None:
            self._monitor.count(seen)

    def close_slot(self) -> SlotMix:
        """Give the mix of the slot that ended and of the one that starts."""
        closed: SlotMix | None = None if self._monitor is None else self._monitor.close_slot()
        self.slot += 1
        if self._mixes is None and closed is not None:
            return closed
        ended, coming = self._mix(self.slot - 1), self._mix(self.slot)
        return SlotMix(estimate=ended, forecast=coming, uncertainty=np.zeros_like(ended), unknown=0.0, requests=0)

    def _mix(self, slot: int) -> FloatArray:
        assert self._mixes is not None  # noqa: S101 - or a monitor is there
        return np.asarray(self._mixes[min(slot, len(self._mixes) - 1)])
