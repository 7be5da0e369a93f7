"""What a request is read as is all that a panel has to go by: facility location over readings instead of tasks.

A request of task v is read as task u with chance C_vu. Of all requests m_u = Σ_v ψ_v C_vu are read as u, and of these
P_uv = ψ_v C_vu / m_u are of task v. Requests that are read alike go to the same model, so a panel is worth

    Σ_u m_u max_g Σ_v P_uv U_v(x_g)

which is the sum over tasks of `panel.py` with mix m and bounds U Pᵀ: greedy choice and exchange hold as they are.
C = I, nothing misread, gives that sum itself.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tanbr.types import FloatArray, TaskMix, as_confusion


@dataclass(frozen=True, eq=False)
class Readings:
    """A mix of tasks, as it is read."""

    task_mix: TaskMix  # (V,) ψ
    mix: TaskMix  # (V,) m, share of the requests read as each task
    tasks: FloatArray  # (V, V) P, what the requests read as a task are of
    confusion: FloatArray  # (V, V) C

    @classmethod
    def of(cls, mix: TaskMix, confusion: ArrayLike | None = None) -> "Readings":
        """Read a mix (V,) of which `confusion` (V, V) tells how each task is read; rightly if None."""
        if confusion is None:
            return cls(mix, mix, np.eye(len(mix)), np.eye(len(mix)))
        chance = as_confusion(confusion, tasks=len(mix))
        joint = mix[:, None] * chance  # (of task, read as)
        read = joint.sum(axis=0)
        return cls(mix, read, np.where(read > 0, joint / np.maximum(read, 1e-300), np.eye(len(mix))).T, chance)

    def bound(self, of_tasks: FloatArray) -> FloatArray:
        """Bounds of readings (n, V) from those of tasks (n, V)."""
        return np.asarray(of_tasks @ self.tasks.T)

    def received(self, models: FloatArray) -> FloatArray:
        """Mix of tasks (G, V) that each model receives, from the shares of readings (G, V) that go to it."""
        return np.asarray((models * self.mix) @ self.tasks)
