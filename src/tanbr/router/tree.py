"""The partition tree H of Sec. III-B: boxes in [0, 1]^K, halved along a random dimension."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tanbr.router.simplex import is_feasible
from tanbr.types import Blend, FloatArray

Point = Callable[[FloatArray, FloatArray], Blend]  # of a box, low and high (K,): its representative blend (K,)


@dataclass(frozen=True, eq=False)
class PartitionTree:
    """Nodes (h, i) as columns, in the order they were made; row 0 is the root H_{0,1} = [0, 1]^K."""

    low: FloatArray  # (n, K) sides of the boxes
    high: FloatArray  # (n, K)
    blend: FloatArray  # (n, K) x_{h,i}, as it would be served; 0 where the box holds no feasible blend
    parent: NDArray[np.int64]  # (n,) -1 for the root
    depth: NDArray[np.int64]  # (n,) h
    visits: NDArray[np.int64]  # (n,) P_{h,i}
    leaf: NDArray[np.bool_]  # (n,)
    active: NDArray[np.bool_]  # (n,) whether the box holds a feasible blend

    @classmethod
    def root(cls, experts: int, *, point: Point) -> "PartitionTree":
        """Make the tree of one node."""
        low, high, yes = np.zeros(experts), np.ones(experts), np.ones(1, dtype=np.bool_)
        none = np.zeros(1, dtype=np.int64)
        return cls(low[None], high[None], point(low, high)[None], none - 1, none, none, yes, yes)

    def __len__(self) -> int:
        """How many nodes there are, inner and inactive ones included."""
        return len(self.parent)

    @property
    def active_leaves(self) -> NDArray[np.intp]:
        """N_t: rows of the leaves that hold a feasible blend."""
        return np.flatnonzero(self.leaf & self.active)

    def visited(self, node: int) -> "PartitionTree":
        """P_{h,i} + 1."""
        return self._with(visits=self.visits + (np.arange(len(self)) == node))

    def expanded(self, node: int, *, rng: np.random.Generator, point: Point) -> "PartitionTree":
        """Halve a leaf's box along a random dimension; children without a feasible blend are inactive."""
        side = int(rng.integers(self.low.shape[1]))
        middle = 0.5 * (self.low[node, side] + self.high[node, side])
        low, high = self.low[[node, node]], self.high[[node, node]]
        high[0, side] = low[1, side] = middle
        active = np.array([is_feasible(*box) for box in zip(low, high, strict=True)])
        blend = np.zeros_like(low)
        for child in np.flatnonzero(active):
            blend[child] = point(low[child], high[child])
        children = PartitionTree(
            low=low, high=high, blend=blend, active=active,
            parent=np.array([node, node]), depth=self.depth[[node, node]] + 1,
            visits=np.zeros(2, dtype=np.int64), leaf=np.ones(2, dtype=np.bool_),
        )  # fmt: skip
        above = self._with(leaf=self.leaf & (np.arange(len(self)) != node))
        names = [field.name for field in fields(self)]
        return PartitionTree(
            **{name: np.concatenate([getattr(above, name), getattr(children, name)]) for name in names}
        )

    def _with(self, **columns: NDArray[Any]) -> "PartitionTree":
        return PartitionTree(**{**vars(self), **columns})
