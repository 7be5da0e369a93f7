"""From single rewards to the reward of a slot: r (V,) and the counts behind it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from tanbr.serve.config import RewardConfig
from tanbr.serve.store import Given
from tanbr.types import Counts, FloatArray, Reward, TaskMix

SOURCES = ("feedback", "labels", "shadow", "confidence")


def share_out(task: int | None, posterior: FloatArray | None, mix: TaskMix) -> FloatArray:
    """How much of a reward belongs to each task (V,), summing to 1.

    All of it to a task that is named. Otherwise by Bayes: the monitor's posterior is under a uniform prior, and the
    slot's mix is the better one. A request of which nothing is known is shared out by the mix.
    """
    if task is not None:
        return np.eye(len(mix))[task]
    if posterior is None:
        return mix
    weights = posterior * np.maximum(mix, 1e-3)
    return np.asarray(weights / weights.sum())


@dataclass(eq=False)
class Tally:
    """Sums and counts of rewards per task and source; a source's weight says what one reward of it counts."""

    tasks: int
    config: RewardConfig
    sums: dict[str, FloatArray] = field(default_factory=dict)  # source → (V,)
    counts: dict[str, FloatArray] = field(default_factory=dict)

    def copy(self) -> "Tally":
        """A tally that starts with the same rewards."""
        return Tally(self.tasks, self.config, dict(self.sums), dict(self.counts))

    def add(self, source: str, sums: FloatArray, counts: FloatArray) -> None:
        """Add sums and counts (V,)."""
        self.sums[source] = self.sums.get(source, np.zeros(self.tasks)) + sums
        self.counts[source] = self.counts.get(source, np.zeros(self.tasks)) + counts

    def add_feedback(self, rows: Iterable[Given], mix: TaskMix) -> None:
        """Add feedback, shared out over the tasks of a slot with this mix (V,)."""
        for row in rows:
            share = share_out(row.task, row.posterior, mix)
            self.add(row.source, row.reward * share, share)

    @property
    def parts(self) -> list[tuple[str, FloatArray, FloatArray]]:
        """Source, sums (V,), counts (V,)."""
        return [(source, sums, self.counts[source]) for source, sums in self.sums.items()]

    @property
    def weighted(self) -> tuple[FloatArray, FloatArray]:
        """Sums and counts (V,) over the sources."""
        total, count = np.zeros(self.tasks), np.zeros(self.tasks)
        for source, sums, counts in self.parts:
            weight = getattr(self.config, source)
            total += weight * sums
            count += weight * counts
        return total, count

    @property
    def reward(self) -> tuple[Reward, Counts]:
        """The slot's reward (V,), NaN where too few requests speak for a task, and the counts (V,)."""
        total, count = self.weighted
        seen = count >= self.config.least_count
        reward = np.divide(total, count, out=np.full(self.tasks, np.nan), where=seen)
        return np.clip(reward, 0.0, 1.0), np.where(seen, count, 0.0)

    @property
    def shares(self) -> dict[str, float]:
        """Source → its share of the weighted counts."""
        weights = {source: getattr(self.config, source) * float(count.sum()) for source, count in self.counts.items()}
        total = sum(weights.values())
        return {source: weight / total for source, weight in weights.items()} if total else {}
