"""What a router tells about itself: why a blend was chosen, what was told, and its search tree."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tanbr.types import Counts, Decision, FloatArray, Reward


@dataclass(frozen=True)
class Terms:
    """Why a blend was chosen: the terms of its upper confidence bound, eq. (u_node)."""

    mean: float  # ψᵀf(x), predicted reward
    granularity: float = 0.0  # ν₁ρ^h, what the leaf's size may hide
    uncertainty: float = 0.0  # γ√(gᵀZ⁻¹g/w), or β standard deviations
    node: int = -1  # the tree's name for the node (`TreeView.node`), -1 when the blend is no node of it
    depth: int = 0  # h of that node
    candidates: int = 1  # how many blends were compared

    @property
    def bound(self) -> float:
        """The upper confidence bound U."""
        return self.mean + self.granularity + self.uncertainty


@dataclass(frozen=True, eq=False)
class Told:
    """One slot that was decided and told."""

    decision: Decision
    reward: Reward  # (V,) NaN where unseen
    counts: Counts  # (V,)
    terms: Terms


@dataclass(frozen=True, eq=False)
class TreeView:
    """A snapshot of the search tree, one row per node; row 0 is the root and parents come before children."""

    parent: np.ndarray[Any, np.dtype[np.int64]]  # (n,) -1 for the root
    depth: np.ndarray[Any, np.dtype[np.int64]]  # (n,)
    blend: FloatArray  # (n, K)
    visits: FloatArray  # (n,) how often the node's blend was told
    value: FloatArray  # (n, V) predicted reward per task
    leaf: np.ndarray[Any, np.dtype[np.bool_]]  # (n,) whether the node may be chosen and has no children
    active: np.ndarray[Any, np.dtype[np.bool_]]  # (n,) whether the node's region holds a feasible blend
    node: np.ndarray[Any, np.dtype[np.int64]]  # (n,) what `Terms.node` calls it

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self.parent)


def lone_root(experts: int, tasks: int) -> TreeView:
    """Show the tree of a router that has none: the even blend."""
    yes = np.ones(1, dtype=np.bool_)
    even, nothing = np.full((1, experts), 1.0 / experts), np.full((1, tasks), np.nan)
    return TreeView(
        np.array([-1]), np.zeros(1, dtype=np.int64), even, np.zeros(1), nothing, yes, yes, np.zeros(1, dtype=np.int64)
    )
