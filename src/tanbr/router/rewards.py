"""Told rewards, one row per distinct blend: the squared loss has the same gradient in pooled form."""

import numpy as np

from tanbr.router.network import Data
from tanbr.state import Arrays
from tanbr.types import Counts, FloatArray, Reward


class RewardTable:
    """Mean reward and weight of each distinct input; at most `limit` of them, the oldest dropped first."""

    def __init__(self, *, experts: int, tasks: int, limit: int) -> None:
        self._limit = limit
        self._row: dict[bytes, int] = {}
        self._used = 0
        self._inputs = np.zeros((16, experts))
        self._target = np.zeros((16, tasks))
        self._weight = np.zeros((16, tasks))
        self.total = 0.0  # rewards told, in slots: Σ counts / V

    @property
    def data(self) -> Data:
        """The rows in use."""
        return Data(self._inputs[: self._used], self._target[: self._used], self._weight[: self._used])

    def add(self, x: FloatArray, reward: Reward, counts: Counts) -> None:
        """Pool one reward (V,) with its counts (0 where unseen)."""
        row = self._row.get(x.tobytes())
        if row is None:
            row = self._new_row(x)
        seen = counts > 0
        total = self._weight[row] + counts
        error = np.where(seen, reward, 0.0) - self._target[row]
        self._target[row] += np.where(seen, error * counts / np.maximum(total, 1e-300), 0.0)
        self._weight[row] = total
        self.total += float(counts.mean())

    def _new_row(self, x: FloatArray) -> int:
        if self._used == self._limit:
            oldest, row = next(iter(self._row.items()))
            del self._row[oldest]
            self.total -= float(self._weight[row].mean())
            self._target[row] = self._weight[row] = 0.0
        else:
            row, self._used = self._used, self._used + 1
            if row == len(self._inputs):
                for name in ("_inputs", "_target", "_weight"):
                    table = getattr(self, name)
                    setattr(self, name, np.concatenate([table, np.zeros_like(table)]))
        self._inputs[row] = x
        self._row[x.tobytes()] = row
        return row

    def snapshot(self) -> Arrays:
        """Return the rows in the order they were first told."""
        order = np.array(list(self._row.values()), dtype=np.int64)
        data = self.data
        return {
            "inputs": data.inputs, "target": data.target, "weight": data.weight,
            "order": order, "total": np.array(self.total),
        }  # fmt: skip

    def restore(self, arrays: Arrays) -> None:
        """Undo to what `snapshot` returned."""
        self._used = len(arrays["inputs"])
        self.total = float(arrays["total"])
        size = max(16, 1 << (self._used - 1).bit_length()) if self._used else 16
        for name in ("inputs", "target", "weight"):
            table = np.zeros((size, arrays[name].shape[1]))
            table[: self._used] = arrays[name]
            setattr(self, f"_{name}", table)
        self._row = {self._inputs[row].tobytes(): int(row) for row in arrays["order"]}
