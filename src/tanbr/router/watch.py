"""Whether a task's rewards are still those that were learned: Page's sum of each task.

Before a task's reward r is learned, the posterior predicts it with mean m and variance s², the noise included. Against
that stands a change: the same mean, but a variance of s² + c², where c² is the variance of rewards between blends. With
q = c²/(s² + c²) and z = (r − m)/s the logarithm of the Bayes factor of the two is

    ℓ = ½·log(1 − q) + ½·q·z²

and Page's sum E = max(0, E + min(ℓ, h/3)) is the evidence for a change since it was last 0. While nothing changes, the
mean of exp(ℓ) is 1, so that on average at least eʰ rewards of a task pass until E exceeds h (Lorden 1971); no three
rewards, however odd, are enough. That holds as far as the posterior's variances do. So the watch begins with the first
fit of kernel and noise, anew with every other, and a task whose rewards differ more from what is predicted than the
fit allows is held to its own mean z² (of what it showed since, each at most `OUTLIER`, and `FIRST` times 1).
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tanbr.types import FloatArray, lock

OUTLIER = 9.0  # z² above which a reward no longer says anything about a task's usual noise: three deviations
TOGETHER = 50  # slots within which changes of several tasks are taken to be one of the model
FIRST = 20.0  # rewards that the fit's word is worth: as many as make a mean z² sure to a third


@dataclass(frozen=True, eq=False)
class Watch:
    """What speaks for a change of each task's rewards."""

    evidence: FloatArray  # (V,) E, the logarithm of a Bayes factor
    squares: FloatArray  # (V,) sum of z² since the last fit, and
    seen: FloatArray  # (V,) of how many rewards
    changes: NDArray[np.int64]  # (V,) how often a task was found changed
    last: NDArray[np.int64]  # (V,) told slots when it last was, a long time ago if never

    def __post_init__(self) -> None:
        lock(self)

    @classmethod
    def start(cls, tasks: int) -> "Watch":
        """Nothing was seen yet."""
        none = np.zeros(tasks)
        return cls(none, none, none, none.astype(np.int64), np.full(tasks, -TOGETHER))

    def begun(self) -> "Watch":
        """Let the evidence start from nothing, after what the variances rest on was fitted."""
        none = np.zeros(len(self.evidence))
        return replace(self, evidence=none, squares=none, seen=none)

    def weighed(
        self, error: FloatArray, variance: FloatArray, *, shift: float, slot: int, threshold: float
    ) -> tuple["Watch", NDArray[np.intp]]:
        """Weigh errors r − m (V,), NaN where unseen, against variances s² (V,); c² is `shift`, h `threshold`.

        Which tasks have changed comes second.
        """
        seen = ~np.isnan(error)
        usual = np.maximum((FIRST + self.squares) / (FIRST + self.seen), 1.0)  # (V,)
        share = shift / (variance + shift)
        squared = np.where(seen, error**2 / variance, 0.0)
        factor = 0.5 * (np.log1p(-share) + share * squared / usual)
        summed = np.maximum(self.evidence + np.minimum(factor, threshold / 3.0), 0.0)
        evidence = np.where(seen, summed, self.evidence)
        changed = evidence > threshold
        after = Watch(
            evidence=np.where(changed, 0.0, evidence),
            squares=np.where(changed, 0.0, self.squares + np.minimum(squared, OUTLIER)),
            seen=np.where(changed, 0.0, self.seen + seen),
            changes=self.changes + changed,
            last=np.where(changed, slot, self.last),
        )
        return after, np.flatnonzero(changed)

    def together(self, slot: int) -> bool:
        """Whether a quarter of the tasks, two at least, changed within `TOGETHER` slots: then the model has."""
        tasks = len(self.last)
        return int((self.last > slot - TOGETHER).sum()) >= max(tasks / 4, min(tasks, 2))
