"""From single rewards to the reward of a slot: r (V,) and the counts behind it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tanbr.monitor.belief import by_mix
from tanbr.serve.clients import Clients
from tanbr.serve.config import RewardConfig
from tanbr.serve.rows import Given
from tanbr.types import Counts, FloatArray, Reward, TaskMix

VERDICT = "verdict"  # source of what the guard or an operator says of a blend; it counts whatever the weights are


def share_out(task: int | None, posterior: FloatArray | None, mix: TaskMix) -> FloatArray:
    """How much of a reward belongs to each task (V,), summing to 1.

    All of it to a task that is named. Otherwise by Bayes: the monitor's posterior is under a uniform prior, and the
    slot's mix is the better one. A request of which nothing is known is shared out by the mix.
    """
    if task is not None:
        return np.eye(len(mix))[task]
    if posterior is None:
        return mix
    return by_mix(posterior, mix)


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

    def weight(self, source: str) -> float:
        """What one reward of a source counts."""
        return 1.0 if source == VERDICT else float(getattr(self.config, source, 0.0))

    def add(self, source: str, sums: FloatArray, counts: FloatArray) -> None:
        """Add sums and counts (V,)."""
        self.sums[source] = self.sums.get(source, np.zeros(self.tasks)) + sums
        self.counts[source] = self.counts.get(source, np.zeros(self.tasks)) + counts

    def add_feedback(self, rows: Sequence[Given], mix: TaskMix, clients: Clients, *, learn: bool = False) -> None:
        """Add feedback of one slot with this mix (V,), weighed by client; with `learn`, clients are compared first.

        Rewards of requests that are unlike any task and name none are left out: they say nothing about a task.
        """
        rows = [row for row in rows if row.task is not None or not row.novel]
        if not rows:
            return
        shares = np.array([share_out(row.task, row.posterior, mix) for row in rows])  # (n, V)
        if learn:
            clients.learn(rows, shares)
        for row, share, weight in zip(rows, shares, clients.weights(rows), strict=True):
            self.add(row.source, weight * row.reward * share, weight * share)

    @property
    def parts(self) -> list[tuple[str, FloatArray, FloatArray]]:
        """Source, sums (V,), counts (V,)."""
        return [(source, sums, self.counts[source]) for source, sums in self.sums.items()]

    @property
    def weighted(self) -> tuple[FloatArray, FloatArray]:
        """Sums and counts (V,) over the sources."""
        total, count = np.zeros(self.tasks), np.zeros(self.tasks)
        for source, sums, counts in self.parts:
            weight = self.weight(source)
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
        weights = {source: self.weight(source) * float(count.sum()) for source, count in self.counts.items()}
        total = sum(weights.values())
        return {source: weight / total for source, weight in weights.items()} if total else {}


def shares_of(tallies: Sequence[Tally]) -> dict[str, float]:
    """Source → its share of the weighted counts, over all models of a slot."""
    whole = Tally(tallies[0].tasks, tallies[0].config)
    for tally in tallies:
        for source, sums, counts in tally.parts:
            whole.add(source, sums, counts)
    return whole.shares
