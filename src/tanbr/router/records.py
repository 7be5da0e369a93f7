"""What a router remembers of a told slot, and the tree of a router that has none."""

from dataclasses import dataclass

import numpy as np

from tanbr.types import Counts, Decision, Reward, Terms, TreeView

__all__ = ["Terms", "Told", "TreeView", "lone_root"]


@dataclass(frozen=True, eq=False)
class Told:
    """One slot that was decided and told."""

    decision: Decision
    reward: Reward  # (V,) NaN where unseen
    counts: Counts  # (V,)
    terms: Terms


def lone_root(experts: int, tasks: int) -> TreeView:
    """Show the tree of a router that has none: the even blend."""
    yes = np.ones(1, dtype=np.bool_)
    even, nothing = np.full((1, experts), 1.0 / experts), np.full((1, tasks), np.nan)
    return TreeView(
        np.array([-1]), np.zeros(1, dtype=np.int64), even, np.zeros(1), nothing, yes, yes, np.zeros(1, dtype=np.int64)
    )
