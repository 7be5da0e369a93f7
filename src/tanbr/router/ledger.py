"""What leaving the baseline has cost and earned so far: the accounts of the conservative rule.

Λ = Σ_s ψ_sᵀ(f(x_s) − f(b_s)) over the told slots, each taken at what is expected of it now: rewards that come later
correct earlier slots, too. Slots beyond the last `KEPT` off the baseline stay as they were valued then.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tanbr.types import Blend, FloatArray, TaskMix

KEPT = 256  # slots off the baseline that are valued anew
Expected = Callable[[FloatArray], FloatArray]  # what is expected of blends: (n, K) to (n, V)


@dataclass(frozen=True, eq=False)
class LedgerState:
    """Everything that changes in a `Ledger`."""

    slots: int  # told slots
    off: int  # of them, off the baseline
    swaps: int  # blends that were chosen in the place of another
    earned: float  # what the baseline was expected to earn in all of them
    settled: float  # gain of slots that are no longer valued anew
    mixes: FloatArray  # (n, V) of the slots off the baseline that are
    blends: FloatArray  # (n, K)
    baselines: FloatArray  # (n, K)
    served: FloatArray  # (1, K) the blend chosen last, or (0, K)


class Ledger:
    """The accounts of a router with a baseline."""

    def __init__(self, experts: int, tasks: int) -> None:
        self._experts, self._tasks = experts, tasks
        self.slots = self.off = self.swaps = 0
        self.earned, self.settled = 0.0, 0.0
        self.served: Blend | None = None
        self._rows: deque[tuple[TaskMix, Blend, Blend]] = deque()

    def serve(self, blend: Blend) -> None:
        """Count a swap where the blend is not the served one."""
        self.swaps += self.served is not None and not np.array_equal(blend, self.served)
        self.served = blend

    def gain(self, expected: Expected) -> float:
        """What leaving the baseline is expected to have earned, below 0 what it has cost: Λ."""
        return self.settled + self._gain(list(self._rows), expected)

    def tell(self, mix: TaskMix, blend: Blend, baseline: Blend, expected: Expected) -> None:
        """Enter a slot whose reward has been learned."""
        self.slots += 1
        self.earned += float(expected(baseline[None])[0] @ mix)
        if not np.array_equal(blend, baseline):
            self.off += 1
            self._rows.append((mix, blend, baseline))
        if len(self._rows) > KEPT:
            self.settled += self._gain([self._rows.popleft()], expected)

    @staticmethod
    def _gain(rows: list[tuple[TaskMix, Blend, Blend]], expected: Expected) -> float:
        if not rows:
            return 0.0
        mixes, blends, baselines = (np.array(column) for column in zip(*rows, strict=True))
        return float(((expected(blends) - expected(baselines)) * mixes).sum())

    @property
    def state(self) -> LedgerState:
        """Everything that changes, as one value."""
        V, K = self._tasks, self._experts
        columns = list(zip(*self._rows, strict=True)) if self._rows else [(), (), ()]
        mixes, blends, baselines = (
            np.array(column, dtype=np.float64).reshape(len(column), width)
            for column, width in zip(columns, (V, K, K), strict=True)
        )
        served = np.zeros((0, K)) if self.served is None else self.served[None].copy()
        return LedgerState(
            self.slots, self.off, self.swaps, self.earned, self.settled, mixes, blends, baselines, served
        )

    def restore(self, state: LedgerState) -> None:
        """Undo to what `state` was."""
        self.slots, self.off, self.swaps = state.slots, state.off, state.swaps
        self.earned, self.settled = state.earned, state.settled
        self._rows = deque(zip(state.mixes, state.blends, state.baselines, strict=True))
        self.served = state.served[0] if len(state.served) else None
