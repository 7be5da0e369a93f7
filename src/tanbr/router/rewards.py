"""Told rewards, one row per distinct blend: the squared loss has the same gradient in pooled form."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tanbr.types import Counts, FloatArray, Reward


@dataclass(frozen=True, eq=False)
class RewardTable:
    """Mean reward of each distinct input and the weight behind it: what line 14 fits."""

    inputs: FloatArray  # (m, K) unit
    target: FloatArray  # (m, V) mean reward, 0 where unseen
    weight: FloatArray  # (m, V) summed counts, 0 where unseen
    order: NDArray[np.int64]  # (m,) rows, first told first
    total: float  # rewards in the table, in slots: Σ counts / V

    @classmethod
    def empty(cls, *, experts: int, tasks: int) -> "RewardTable":
        """Make a table without rows."""
        none = np.zeros((0, tasks))
        return cls(np.zeros((0, experts)), none, none, np.zeros(0, dtype=np.int64), 0.0)

    def added(self, x: FloatArray, reward: Reward, counts: Counts, *, limit: int) -> "RewardTable":
        """Pool one reward (V,) with its counts (0 where unseen); beyond `limit` rows the oldest is dropped."""
        known = np.flatnonzero((self.inputs == x).all(axis=1))
        if not len(known):
            return self._with_row(x, limit).added(x, reward, counts, limit=limit)
        row, seen = int(known[0]), counts > 0
        total = self.weight[row] + counts
        error = np.where(seen, reward, 0.0) - self.target[row]
        target, weight = self.target.copy(), self.weight.copy()
        target[row] += np.where(seen, error * counts / np.maximum(total, 1e-300), 0.0)
        weight[row] = total
        return replace(self, target=target, weight=weight, total=self.total + float(counts.mean()))

    def _with_row(self, x: FloatArray, limit: int) -> "RewardTable":
        """Make room for a new input: a row of its own, or the oldest one's."""
        none = np.zeros((1, self.target.shape[1]))
        if len(self.inputs) < limit:
            return replace(
                self,
                inputs=np.concatenate([self.inputs, x[None]]),
                target=np.concatenate([self.target, none]),
                weight=np.concatenate([self.weight, none]),
                order=np.append(self.order, len(self.inputs)),
            )
        row = int(self.order[0])
        inputs, target, weight = self.inputs.copy(), self.target.copy(), self.weight.copy()
        inputs[row], target[row], weight[row] = x, 0.0, 0.0
        total = self.total - float(self.weight[row].mean())
        return RewardTable(inputs, target, weight, np.append(self.order[1:], row), total)
