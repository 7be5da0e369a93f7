"""The partition tree H of Sec. III-B: boxes in [0, 1]^K, halved along a random dimension."""

import numpy as np
from numpy.typing import NDArray

from tanbr.router.simplex import corner_point, is_feasible, keep_largest, proportional_point
from tanbr.state import Arrays
from tanbr.types import FloatArray

_COLUMNS = ("low", "high", "blend", "parent", "depth", "visits", "leaf", "active")


class PartitionTree:
    """Nodes (h, i) as columns, in the order they were made; row 0 is the root H_{0,1} = [0, 1]^K."""

    def __init__(self, *, experts: int, max_active: int, interior: bool = False) -> None:
        self._point = proportional_point if interior else corner_point
        self._max_active = max_active
        self.low = np.zeros((1, experts))  # (n, K)
        self.high = np.ones((1, experts))  # (n, K)
        self.blend = self._representative(self.low[0], self.high[0])[None]  # (n, K) x_{h,i}, as it would be served
        self.parent = np.array([-1])
        self.depth = np.zeros(1, dtype=np.int64)  # h
        self.visits = np.zeros(1, dtype=np.int64)  # P_{h,i}
        self.leaf = np.ones(1, dtype=np.bool_)
        self.active = np.ones(1, dtype=np.bool_)  # whether the box holds a feasible blend

    def __len__(self) -> int:
        """How many nodes there are, inner and inactive ones included."""
        return len(self.parent)

    @property
    def active_leaves(self) -> NDArray[np.intp]:
        """N_t: rows of the leaves that hold a feasible blend."""
        return np.flatnonzero(self.leaf & self.active)

    def expand(self, node: int, rng: np.random.Generator) -> None:
        """Halve a leaf's box along a random dimension; children without a feasible blend are inactive."""
        side = int(rng.integers(self.low.shape[1]))
        middle = 0.5 * (self.low[node, side] + self.high[node, side])
        low, high = self.low[[node, node]], self.high[[node, node]]
        high[0, side] = low[1, side] = middle
        active = np.array([is_feasible(*box) for box in zip(low, high, strict=True)])
        blend = np.zeros_like(low)
        for child in np.flatnonzero(active):
            blend[child] = self._representative(low[child], high[child])
        self.leaf[node] = False
        fresh = {
            "low": low,
            "high": high,
            "blend": blend,
            "parent": np.array([node, node]),
            "depth": self.depth[[node, node]] + 1,
            "visits": np.zeros(2, dtype=np.int64),
            "leaf": np.ones(2, dtype=np.bool_),
            "active": active,
        }
        for name, rows in fresh.items():
            setattr(self, name, np.concatenate([getattr(self, name), rows]))

    def _representative(self, low: FloatArray, high: FloatArray) -> FloatArray:
        """Find a point of the box that sums to 1 (1a), with the B largest weights kept (1b)."""
        return keep_largest(self._point(low, high), self._max_active)

    def snapshot(self) -> Arrays:
        """Every column."""
        return {name: getattr(self, name) for name in _COLUMNS}

    def restore(self, arrays: Arrays) -> None:
        """Undo to what `snapshot` returned."""
        for name in _COLUMNS:
            setattr(self, name, arrays[name].copy())
