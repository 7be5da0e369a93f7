"""The default mode's tree: a subdivision of the simplex towards its vertices, in a fixed number of rows.

A node x of size d has the children (1 − d)x + d·e_k of size d/2, one per expert k: every child is feasible and
no split is wasted. Row 0 is the root, the even blend.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tanbr.router.simplex import Sizes, keep_largest
from tanbr.types import FloatArray, lock

ROOT_SIZE = 0.5
SNAP = 0.03  # a blend this near (Euclid) to a known arm is played as that arm: rewards there differ by less than noise
DEEPEST = int(np.log2(ROOT_SIZE / SNAP))  # children of deeper nodes would be played as their parent
CHILDREN = 16  # most of a node, the most promising experts: with more, one split would take the room of ten


@dataclass(frozen=True, eq=False)
class VertexTree:
    """The nodes as columns with room for n; which blends they stand for, not what they are worth."""

    blend: FloatArray  # (n, K)
    parent: NDArray[np.int64]  # (n,) -1 for the root
    depth: NDArray[np.int64]  # (n,)
    children: NDArray[np.int64]  # (n,) how many
    used: NDArray[np.bool_]  # (n,)

    def __post_init__(self) -> None:
        lock(self)

    @classmethod
    def root(cls, sizes: Sizes, *, room: int) -> "VertexTree":
        """Make a tree of one node, or of none where there is no room."""
        blend, used, none = np.zeros((room, sizes.experts)), np.zeros(room, dtype=np.bool_), np.zeros(room, np.int64)
        used[:1] = True
        blend[:1] = keep_largest(np.full(sizes.experts, 1.0 / sizes.experts), sizes.max_active)
        return cls(blend, none - 1, none, none, used)

    @property
    def free(self) -> int:
        """How many rows are not in use."""
        return len(self.used) - int(np.count_nonzero(self.used))

    @property
    def leaf(self) -> NDArray[np.bool_]:
        """Which rows are nodes without children."""
        return np.asarray(self.used & (self.children == 0))

    def offspring(self, node: int, order: NDArray[np.intp], sizes: Sizes) -> FloatArray:
        """Make the blends of a node's children, towards the experts that come first in `order`: (n, K)."""
        size = ROOT_SIZE * 0.5 ** float(self.depth[node])
        children = np.repeat((1.0 - size) * self.blend[node : node + 1], min(CHILDREN, sizes.experts), axis=0)
        children[np.arange(len(children)), order[: len(children)]] += size
        return keep_largest(children, sizes.max_active)

    def added(self, node: int, blends: FloatArray) -> tuple["VertexTree", NDArray[np.intp]]:
        """Hang children (n, K) under a node, and say which rows they got. There must be room."""
        rows = np.flatnonzero(~self.used)[: len(blends)]
        blend, parent, depth, children, used = (column.copy() for column in vars(self).values())
        blend[rows], parent[rows], depth[rows], used[rows] = blends, node, depth[node] + 1, True
        children[rows], children[node] = 0, len(rows)
        return VertexTree(blend, parent, depth, children, used), rows
