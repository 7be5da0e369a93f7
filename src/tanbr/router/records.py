"""What a router remembers of a slot, and the tree of a router that has none."""

from dataclasses import dataclass

import numpy as np

from tanbr.types import Blend, Decision, FloatArray, PanelDecision, Terms, TreeView

__all__ = ["Open", "Terms", "Told", "TreeView", "blends_of", "lone_root"]


@dataclass(frozen=True, eq=False)
class Open:
    """A slot that was decided and not told yet."""

    decision: Decision | PanelDecision
    why: tuple[Terms, ...]  # (G,), one for a single blend
    confusion: FloatArray | None = None  # (V, V) how requests were taken to be read when a panel was chosen

    @property
    def blends(self) -> FloatArray:
        """What is served: (G, K)."""
        return self.decision.blends if isinstance(self.decision, PanelDecision) else self.decision.blend[None]

    @property
    def terms(self) -> Terms | tuple[Terms, ...]:
        """Why the blend was chosen; of a panel, why each of its blends was."""
        return self.why if isinstance(self.decision, PanelDecision) else self.why[0]


@dataclass(frozen=True, eq=False)
class Told:
    """A slot that was decided and told."""

    decision: Decision | PanelDecision
    reward: FloatArray  # (V,), of a panel (G, V); NaN where unseen
    counts: FloatArray  # (V,), of a panel (G, V)
    why: tuple[Terms, ...]  # (G,), one for a single blend

    @property
    def terms(self) -> Terms | tuple[Terms, ...]:
        """Why the blend was chosen; of a panel, why each of its blends was."""
        return Open(self.decision, self.why).terms


def blends_of(slots: list[Open]) -> list[Blend]:
    """Every blend whose reward is still to come."""
    return [blend for slot in slots for blend in slot.blends]


def lone_root(experts: int, tasks: int) -> TreeView:
    """Show the tree of a router that has none: the even blend."""
    yes = np.ones(1, dtype=np.bool_)
    even, nothing = np.full((1, experts), 1.0 / experts), np.full((1, tasks), np.nan)
    return TreeView(
        np.array([-1]), np.zeros(1, dtype=np.int64), even, np.zeros(1), nothing, yes, yes, np.zeros(1, dtype=np.int64)
    )
