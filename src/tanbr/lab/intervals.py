"""Confidence intervals: over seeds or pairs, and of slot rewards by blocks of slots, because neighbours are alike."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from tanbr.types import FloatArray

BLOCK = 20  # slots that are resampled together, at most a third of all: one block would always be the same
DRAWS = 2_000


@dataclass(frozen=True)
class Spread:
    """A mean and half the width of its 95% interval (Student's, over seeds or pairs); infinite for a single value."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: ArrayLike) -> "Spread":
        """Average."""
        array = np.asarray(values, dtype=np.float64)
        if len(array) < 2:
            return cls(float(array.mean()), math.inf)
        error = array.std(ddof=1) / np.sqrt(len(array))
        return cls(float(array.mean()), float(stats.t.ppf(0.975, len(array) - 1) * error))

    def words(self, *, factor: float = 1.0) -> str:
        """Write it with its half width, where it has one."""
        width = f" ± {factor * self.half:.1f}" if math.isfinite(self.half) else ""
        return f"{factor * self.mean:+.1f}{width}"


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and slots, and where it lies with 95% confidence."""

    mean: float
    low: float  # blocks of slots resampled within each seed
    high: float
    seeds: tuple[float, ...]  # each seed's own mean
    over_seeds: float  # half the width of Student's interval over the seeds' means; NaN for a single seed

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {(self.high - self.low) / 2:.3f}"

    @property
    def points(self) -> str:
        """A difference, in points."""
        return f"{100 * self.mean:+.1f} ± {50 * (self.high - self.low):.1f}"


def interval(series: Sequence[FloatArray], *, block: int = BLOCK, seed: int = 0) -> Interval:
    """Average one series of slot values per seed, each (T,), slots without a value (NaN) left out."""
    values = [one[~np.isnan(one)] for one in series]
    means = [float(one.mean()) for one in values]
    rng = np.random.default_rng(seed)
    drawn = np.mean([_block_means(one, min(block, max(1, len(one) // 3)), rng) for one in values], axis=0)  # (DRAWS,)
    low, high = np.quantile(drawn, (0.025, 0.975))
    over_seeds = Spread.of(means)
    half = over_seeds.half if math.isfinite(over_seeds.half) else float("nan")
    return Interval(over_seeds.mean, float(low), float(high), tuple(means), half)


def _block_means(values: FloatArray, block: int, rng: np.random.Generator) -> FloatArray:
    """Means of series put together from blocks that start anywhere and wrap around (circular bootstrap) (DRAWS,)."""
    count = -(-len(values) // block)
    sums = np.cumsum(np.concatenate([[0.0], values, values[: block - 1]]))
    of_block = (sums[block:] - sums[:-block]) / block  # (T,) mean of the block that starts at each slot
    return np.asarray(of_block[rng.integers(len(of_block), size=(DRAWS, count))].mean(axis=1))
