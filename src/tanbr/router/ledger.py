"""What leaving the baseline has cost and earned so far: the accounts of the conservative rule.

Λ = Σ_s ψ_sᵀ(f(x_s) − f(b_s)) over the told slots, each taken at what is expected of it now: rewards that come later
correct earlier slots, too. Entries beyond the last `KEPT` off the baseline stay as they were valued then, and so do all
when rewards are found to have changed. A panel's slot is several entries, each with the mix of some tasks.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tanbr.router.records import Open
from tanbr.types import Blend, FloatArray, TaskMix

KEPT = 256  # entries off the baseline that are valued anew
Entry = tuple[TaskMix, Blend, Blend]  # mix (V,) of some tasks or all, what was served, the baseline's blend
Expected = Callable[[FloatArray], FloatArray]  # what is expected of blends: (n, K) to (n, V)


@dataclass(frozen=True, eq=False)
class LedgerState:
    """Everything that changes in a `Ledger`."""

    slots: int  # told slots
    off: int  # of them, off the baseline
    swaps: int  # told blends or panels that were not those told before
    earned: float  # what the baseline was expected to earn in all of them
    settled: float  # gain of entries that are no longer valued anew
    mixes: FloatArray  # (n, V) of the entries off the baseline that are
    blends: FloatArray  # (n, K)
    baselines: FloatArray  # (n, K)
    served: FloatArray  # (1, K) the blend told last, (G, K) the panel, or (0, K)


class Ledger:
    """The accounts of a router with a baseline."""

    def __init__(self, experts: int, tasks: int) -> None:
        self._experts, self._tasks = experts, tasks
        self.slots = self.off = self.swaps = 0
        self.earned, self.settled = 0.0, 0.0
        self.served = np.zeros((0, experts))
        self._rows: deque[Entry] = deque()

    def serve(self, blends: FloatArray) -> None:
        """Count a swap where the told blend (1, K) or panel (G, K) is not the one told before."""
        self.swaps += len(self.served) > 0 and not np.array_equal(blends, self.served)
        self.served = blends

    def serving(self, open_slots: list[Open]) -> FloatArray:
        """What is served now, (1, K) or of a panel (G, K): the newest decision that was not declined."""
        return open_slots[-1].blends if open_slots else self.served

    def gain(self, expected: Expected) -> float:
        """What leaving the baseline is expected to have earned, below 0 what it has cost: Λ."""
        return self.settled + self._gain(list(self._rows), expected)

    def tell(self, entries: list[Entry], expected: Expected) -> None:
        """Enter a slot whose reward has been learned."""
        self.slots += 1
        self.earned += float(sum(expected(baseline[None])[0] @ mix for mix, _, baseline in entries))
        off = [entry for entry in entries if not np.array_equal(entry[1], entry[2])]
        self.off += len(off) > 0
        self._rows.extend(off)
        self.settle(expected, keep=KEPT)

    def settle(self, expected: Expected, *, keep: int = 0) -> None:
        """Leave all but the last entries at what is expected of them now."""
        done = [self._rows.popleft() for _ in range(max(len(self._rows) - keep, 0))]
        self.settled += self._gain(done, expected)

    @staticmethod
    def _gain(rows: list[Entry], expected: Expected) -> float:
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
        counts = (self.slots, self.off, self.swaps)
        return LedgerState(*counts, self.earned, self.settled, mixes, blends, baselines, self.served.copy())

    def restore(self, state: LedgerState) -> None:
        """Undo to what `state` was."""
        self.slots, self.off, self.swaps = state.slots, state.off, state.swaps
        self.earned, self.settled = state.earned, state.settled
        self._rows = deque(zip(state.mixes, state.blends, state.baselines, strict=True))
        self.served = state.served.copy()
