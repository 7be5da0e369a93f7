"""The default mode's tree: a subdivision of the simplex towards its vertices, in a fixed number of rows.

A node x of size d has the children (1 − d)x + d·e_k of size d/2, one per expert k: every child is feasible and
no split is wasted. Row 0 is the root, the even blend. Rows of recycled leaves are used again.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tanbr.router.simplex import keep_largest
from tanbr.router.sizes import Sizes
from tanbr.types import FloatArray

ROOT_SIZE = 0.5


@dataclass(frozen=True, eq=False)
class TreeState:
    """The columns of a vertex tree with room for n nodes."""

    blend: FloatArray  # (n, K)
    parent: NDArray[np.int64]  # (n,) -1 for the root
    depth: NDArray[np.int64]  # (n,)
    children: NDArray[np.int64]  # (n,) how many
    used: NDArray[np.bool_]  # (n,)


class VertexTree:
    """Nodes of the tree as columns; which blends they stand for, not what they are worth."""

    def __init__(self, sizes: Sizes, *, room: int, most_children: int, least: float) -> None:
        experts, self._max_active = sizes.experts, sizes.max_active
        self._most_children = min(most_children, experts)
        self._deepest = int(np.log2(ROOT_SIZE / least))  # below, children would be played as their parent
        self.blend = np.zeros((room, experts))
        self.parent = np.full(room, -1, dtype=np.int64)
        self.depth = np.zeros(room, dtype=np.int64)
        self.children = np.zeros(room, dtype=np.int64)
        self.used = np.zeros(room, dtype=np.bool_)
        if room:
            self.used[0] = True
            self.blend[0] = keep_largest(np.full(experts, 1.0 / experts), sizes.max_active)

    @property
    def free(self) -> int:
        """How many rows are not in use."""
        return len(self.used) - int(np.count_nonzero(self.used))

    @property
    def ripe(self) -> NDArray[np.bool_]:
        """Which rows are leaves that may be expanded."""
        return np.asarray(self.used & (self.children == 0) & (self.depth <= self._deepest))

    @property
    def leaves(self) -> NDArray[np.intp]:
        """Rows of nodes without children."""
        return np.flatnonzero(self.used & (self.children == 0))

    def offspring(self, node: int, order: NDArray[np.intp]) -> FloatArray:
        """Make the blends of a node's children, towards the experts that come first in `order`: (n, K)."""
        size = ROOT_SIZE * 0.5 ** float(self.depth[node])
        children = np.repeat((1.0 - size) * self.blend[node : node + 1], self._most_children, axis=0)
        children[np.arange(len(children)), order[: len(children)]] += size
        return keep_largest(children, self._max_active)

    def add(self, node: int, blends: FloatArray) -> NDArray[np.intp]:
        """Hang children (n, K) under a node; the rows they got. There must be room."""
        rows = np.flatnonzero(~self.used)[: len(blends)]
        self.used[rows] = True
        self.blend[rows] = blends
        self.parent[rows] = node
        self.depth[rows] = self.depth[node] + 1
        self.children[rows] = 0
        self.children[node] = len(rows)
        return rows

    def remove(self, leaves: NDArray[np.intp]) -> None:
        """Take leaves out; a parent that loses its last child is a leaf again."""
        self.used[leaves] = False
        np.subtract.at(self.children, self.parent[leaves], 1)

    @property
    def state(self) -> "TreeState":
        """Every column, as one value."""
        return TreeState(
            self.blend.copy(), self.parent.copy(), self.depth.copy(), self.children.copy(), self.used.copy()
        )

    def restore(self, state: "TreeState") -> None:
        """Undo to what `state` was."""
        for column, kept in (
            (self.blend, state.blend), (self.parent, state.parent), (self.depth, state.depth),
            (self.children, state.children), (self.used, state.used),
        ):  # fmt: skip
            column[:] = kept
