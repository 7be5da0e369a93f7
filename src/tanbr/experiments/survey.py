"""What blends are worth: the reward of many blends on every task, measured once on held-out rows.

It finds the best fixed blend (a strong rival) and the best blend for a known mix (an upper bound), and it says
whether a checkpoint makes the problem real at all.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tanbr.errors import DataError
from tanbr.files import write_atomically
from tanbr.serve.engine import Engine
from tanbr.tasks.metrics import LabelSpace, figure
from tanbr.tasks.rows import Row
from tanbr.types import Blend, FloatArray, TaskMix, to_jsonable


@dataclass(frozen=True, eq=False)
class Survey:
    """N blends and what they earned."""

    blends: FloatArray  # (N, K); the K one-hot blends first, then the uniform one
    rewards: FloatArray  # (N, V)
    figures: FloatArray  # (N, V) the tasks' own metrics

    @property
    def best_fixed(self) -> Blend:
        """The blend with the highest mean reward over the tasks: the best one for ever if mixes favour no task."""
        return self.blends[self.rewards.mean(axis=1).argmax()]

    def best_for(self, mix: TaskMix) -> Blend:
        """Find the blend with the highest reward ψᵀr for a mix (V,)."""
        return self.blends[(self.rewards @ mix).argmax()]

    def stakes(self, alpha: float, *, seed: int = 0, draws: int = 4_000) -> dict[str, float]:
        """Compare, over mixes from Dirichlet(alpha), the best blend per mix with the best fixed and the uniform one."""
        mixes = np.random.default_rng(seed).dirichlet(np.full(self.rewards.shape[1], alpha), draws)
        worth = mixes @ self.rewards.T  # (draws, N)
        K = self.blends.shape[1]
        return {
            "alpha": alpha,
            "best_per_mix": float(worth.max(axis=1).mean()),
            "best_fixed": float(worth.mean(axis=0).max()),
            "uniform": float(worth[:, K].mean()),
        }

    def save(self, path: Path, **about: Any) -> None:
        """Write the survey, with what it is `about`, as JSON."""
        values = {**about, "blends": self.blends, "rewards": self.rewards, "figures": self.figures}
        write_atomically(path, json.dumps(to_jsonable(values)) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Survey":
        """Read what `save` wrote."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return cls(*(np.array(values[name], dtype=np.float64) for name in ("blends", "rewards", "figures")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} holds no survey ({error}); measure it again with `tanbr survey`") from None


def candidates(experts: int, *, random: int = 143, seed: int = 0) -> FloatArray:
    """Lay out blends to try (N, K): every expert alone, the uniform blend, pairs, and draws from sparse to even."""
    eye = np.eye(experts)
    pairs = [(eye[i] + eye[j]) / 2 for i in range(experts) for j in range(i)]
    rng = np.random.default_rng(seed)
    draws = [rng.dirichlet(np.full(experts, (0.1, 0.3, 0.5, 1.0, 3.0)[i % 5])) for i in range(random)]
    return np.array([*eye, np.full(experts, 1 / experts), *pairs, *draws])


def survey(
    engine: Engine,
    rows: Mapping[str, Sequence[Row]],
    *,
    space: LabelSpace,
    blends: FloatArray,
    report: Callable[[int, int], None] | None = None,
) -> Survey:
    """Serve all rows with every blend; `report` hears how many blends are done."""
    everything = [row for task in space.tasks for row in rows[task.name]]
    rewards, figures = np.empty((2, len(blends), len(space.tasks)))
    for n, blend in enumerate(blends):
        engine.swap(blend)
        answers = space.answers(everything, engine.logits([row.text for row in everything]))
        rewards[n], _ = space.slot_reward(everything, space.rewards(everything, answers))
        for v, task in enumerate(space.tasks):
            own = [i for i, row in enumerate(everything) if row.task == task.name]
            targets = np.array([everything[i].target for i in own])
            figures[n, v] = figure(task, targets, answers[own])
        if report:
            report(n + 1, len(blends))
    return Survey(blends=blends, rewards=rewards, figures=figures)
