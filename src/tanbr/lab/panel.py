"""Panels whose worth is known, and what a panel takes of memory."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tanbr.errors import InputError
from tanbr.merge import Moe
from tanbr.router.panel import Readings, chosen
from tanbr.types import Decision, FloatArray, as_task_mix


class BestPanel:
    """The best panel among blends (N, K) whose rewards (N, V) are known: of every slot's mix, or of one for ever."""

    def __init__(self, blends: FloatArray, rewards: FloatArray, *, mix: ArrayLike | None = None) -> None:
        self._blends, self._rewards = blends, rewards
        self._mix = None if mix is None else as_task_mix(mix, tasks=rewards.shape[1])

    def ask(self, task_mix: ArrayLike, *, models: int = 1, confusion: ArrayLike | None = None) -> Decision:
        """Choose the panel; requests are assigned by the slot's own mix in any case."""
        if not 1 <= models <= len(self._blends):
            raise InputError(f"a panel of known blends holds 1 to {len(self._blends)} of them (got {models})")
        mix = as_task_mix(task_mix, tasks=self._rewards.shape[1])
        rows = chosen(self._rewards, Readings.of(mix if self._mix is None else self._mix, confusion), models)
        return Decision(0, mix, self._blends[rows], self._rewards[rows])

    def tell(self, decision: Any, reward: ArrayLike, counts: ArrayLike | None = None) -> None:
        """Learn nothing."""


def memory(moe: Moe, models: int) -> int:
    """Bytes, in float32, of `models` merged models that share all but their FFNs; K of them hold what the MoE holds."""
    whole, own = (sum(int(np.prod(piece.shape)) for piece in some) for some in (moe.plan.pieces, moe.plan.blended))
    return 4 * (whole + (models - 1) * own)
