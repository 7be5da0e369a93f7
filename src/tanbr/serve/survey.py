"""What blends are worth: the reward of many blends on every task, as `tanbr survey` measured it on held-out rows."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tanbr.errors import DataError
from tanbr.files import write_atomically
from tanbr.merge import Moe
from tanbr.tasks.rows import Task
from tanbr.types import Blend, FloatArray, to_jsonable


@dataclass(frozen=True, eq=False)
class Survey:
    """N blends and what they earned."""

    blends: FloatArray  # (N, K); the K one-hot blends first, then the uniform one
    rewards: FloatArray  # (N, V)
    figures: FloatArray  # (N, V) the tasks' own metrics
    rows: int = 1  # held-out rows per task behind each of them
    tasks: tuple[str, ...] = ()
    model_sha256: str = ""  # of the checkpoint; "" where it is not known
    method: str = "average"  # how its blends were merged
    answers_by: str = "labels"  # or "posterior"

    @property
    def counts(self) -> FloatArray:
        """How many rows stand behind each reward (N, V)."""
        return np.full_like(self.rewards, self.rows)

    @property
    def digest(self) -> str:
        """Tell surveys apart."""
        return hashlib.sha256(self.blends.tobytes() + self.rewards.tobytes()).hexdigest()[:16]

    @property
    def best_fixed(self) -> Blend:
        """The blend with the highest mean reward over the tasks: the best one for ever if mixes favour no task."""
        return self.blends[self.rewards.mean(axis=1).argmax()]

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
        values = {**vars(self), **about}
        write_atomically(path, json.dumps(to_jsonable(values)) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Survey":
        """Read what `save` wrote."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            blends, rewards, figures = (np.array(values[n], dtype=float) for n in ("blends", "rewards", "figures"))
            found = cls(
                blends, rewards, figures, rows=int(values.get("rows", 1)),
                tasks=tuple(values.get("tasks", ())), model_sha256=str(values.get("model_sha256", "")),
                method=str(values.get("method", "average")),
                answers_by=str(values.get("answers_by", "labels")),
            )  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path} holds no survey ({error}); measure it again with `tanbr survey`") from None
        found._check_numbers(path)
        return found

    def _check_numbers(self, path: Path) -> None:
        """Refuse tables of other shapes, blends outside the simplex and rewards on another scale than [0, 1]."""
        shapes = [table.shape for table in (self.blends, self.rewards, self.figures)]
        if any(len(shape) != 2 for shape in shapes) or len({shape[0] for shape in shapes}) > 1:
            raise DataError(f"{path}: blends, rewards and figures must be tables of equal length (got {shapes})")
        off = np.abs(self.blends.sum(axis=1) - 1.0)
        if not ((self.blends >= 0).all() and (off <= 1e-6).all()):
            raise DataError(f"{path}: a blend lies outside the simplex; weights must be at least 0 and sum to 1")
        odd = self.rewards[(self.rewards < 0) | (self.rewards > 1)]
        if len(odd):
            raise DataError(f"{path}: rewards must lie in [0, 1] (got {odd[0]:g}); divide by the scale they are on")

    def check(self, moe: Moe, tasks: Sequence[Task], path: Path, *, answers_by: str = "labels") -> "Survey":
        """Refuse a survey of another checkpoint, other tasks, or blends that were merged or answered in another way."""
        names = tuple(task.name for task in tasks)
        if self.model_sha256 not in ("", moe.fingerprint):
            raise DataError(f"{path} was made with other weights than {moe.path}; measure it again with `tanbr survey`")
        if self.method != str(moe.method):
            raise DataError(f"{path} is about blends merged by {self.method}; pass a survey of those by {moe.method}")
        if self.answers_by != answers_by:
            raise DataError(f"{path} is about answers by {self.answers_by}; pass a survey of answers by {answers_by}")
        if self.tasks not in ((), names) or self.blends.shape[1] != moe.num_experts:
            raise DataError(
                f"{path} is about {', '.join(self.tasks)}, not {', '.join(names)}; pass the data's own survey"
            )
        return self
