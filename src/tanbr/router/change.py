"""Whether a task's rewards are still those that were learned: a Bayes factor, summed while it speaks for a change.

Before a task's reward r is learned, the posterior predicts it with mean m and variance s², the noise included. Against
that stands a change: the same mean, but a variance of s² + c², where c² is the variance of rewards between blends.
With q = c²/(s² + c²) and z = (r − m)/s the logarithm of the Bayes factor of the two is

    ℓ = ½·log(1 − q) + ½·q·z²

and Page's sum E = max(0, E + min(ℓ, h/3)) is the evidence for a change since it was last 0. While nothing changes, the
mean of exp(ℓ) is 1, so that on average at least eʰ rewards of a task pass until E exceeds h (Lorden 1971); no three
rewards, however odd, are enough. That holds as far as the posterior's variances do. So the watch begins with the first
fit of kernel and noise, anew with every other, and a task whose rewards differ more from what is predicted than the
fit allows is held to its own mean z² (of what it showed since, each at most `OUTLIER`, and `FIRST` times 1).
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from tanbr.types import FloatArray

OUTLIER = 9.0  # z² above which a reward no longer says anything about a task's usual noise
TOGETHER = 50  # slots within which changes of several tasks are taken to be one of the model
FIRST = 20.0  # rewards that the fit's word is worth


@dataclass(frozen=True, eq=False)
class WatchState:
    """Everything that changes in a `Watch`."""

    evidence: FloatArray  # (V,) E, the logarithm of a Bayes factor
    squares: FloatArray  # (V,) sum of z² since the last fit, and
    seen: FloatArray  # (V,) of how many rewards
    changes: NDArray[np.int64]  # (V,) how often a task was found changed
    last: NDArray[np.int64]  # (V,) told slots when it last was, -1 if never


class Watch:
    """Page's sum of every task."""

    def __init__(self, tasks: int, *, threshold: float) -> None:
        self.threshold = threshold  # h
        self.evidence, self.squares, self.seen = np.zeros((3, tasks))
        self.changes = np.zeros(tasks, dtype=np.int64)
        self.last = np.full(tasks, -1, dtype=np.int64)

    def see(
        self, error: FloatArray, variance: FloatArray, *, shift: float, seen: NDArray[np.bool_], slot: int
    ) -> NDArray[np.intp]:
        """Weigh the errors r − m (V,) of one slot against their variances s² (V,), c² being `shift`: changed tasks."""
        usual = np.maximum((FIRST + self.squares) / (FIRST + self.seen), 1.0)  # (V,)
        share = shift / (variance + shift)
        squared = np.where(seen, error**2 / variance, 0.0)
        factor = 0.5 * (np.log1p(-share) + share * squared / usual)
        self.squares += np.minimum(squared, OUTLIER)
        self.seen += seen
        summed = np.maximum(self.evidence + np.minimum(factor, self.threshold / 3.0), 0.0)
        self.evidence = np.where(seen, summed, self.evidence)
        changed = np.flatnonzero(self.evidence > self.threshold)
        for sums in (self.evidence, self.squares, self.seen):
            sums[changed] = 0.0
        self.changes[changed] += 1
        self.last[changed] = slot
        return changed

    def together(self, slot: int) -> bool:
        """Whether a quarter of the tasks, two at least, changed within `TOGETHER` slots: then the model has."""
        tasks = len(self.last)
        return int(((self.last >= 0) & (self.last > slot - TOGETHER)).sum()) >= max(tasks / 4, min(tasks, 2))

    def begin(self) -> None:
        """Let the evidence start from nothing, after what the variances rest on was fitted."""
        self.evidence, self.squares, self.seen = np.zeros((3, len(self.evidence)))

    @property
    def state(self) -> WatchState:
        """Everything that changes, as one value."""
        return WatchState(**{field.name: getattr(self, field.name).copy() for field in fields(WatchState)})

    def restore(self, state: WatchState) -> None:
        """Undo to what `state` was."""
        for field in fields(WatchState):
            setattr(self, field.name, getattr(state, field.name).copy())
