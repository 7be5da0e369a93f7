"""Whether the router's choice is served: an operator's pin, the least gain worth a merge, the exploration budget."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from tanbr.serve.config import ServeConfig
from tanbr.types import Blend, Decision, FloatArray, Router


@dataclass(frozen=True, eq=False)
class Standing:
    """A version and what its rewards say."""

    version: int
    blend: Blend  # (K,)
    sums: FloatArray  # (V,) of rewards
    counts: FloatArray  # (V,)

    def worth(self, mix: FloatArray) -> float:
        """Mean reward ψᵀr for a mix (V,); NaN if a task of it was never rewarded."""
        there = mix > 1e-3
        if (self.counts[there] < 1).any():
            return float("nan")
        return float(mix[there] @ (self.sums[there] / self.counts[there]) / mix[there].sum())


@dataclass(frozen=True, eq=False)
class Admitted:
    """What to serve: the decision, or a version instead of it and why."""

    decision: Decision | None
    instead: Standing | None = None
    note: str = ""


class Gate:
    """Looks at a decision before anything is merged for it."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._explored: deque[bool] = deque(maxlen=config.guard.exploration_window)

    def admit(self, decision: Decision, router: Router, now: Standing, known: list[Standing]) -> Admitted:
        """Let a decision pass, or name the version to serve instead; `known` are the good versions."""
        if np.array_equal(decision.blend, now.blend):
            self._explored.append(False)
            return Admitted(decision)
        gain = self._gain(decision, router, now)
        if gain is not None and gain < self._config.min_gain:
            self._explored.append(False)
            return Admitted(None, now, f"skipped: at most {gain:.3f} to gain")
        least = self._config.guard.least_count
        same = [s for s in known if np.array_equal(s.blend, decision.blend)]
        explores = sum(float(s.counts.sum()) for s in same) < least
        budget = self._config.guard.exploration
        if explores and budget < 1 and (sum(self._explored) + 1) > budget * (len(self._explored) + 1):
            self._explored.append(False)
            worth = [(s.worth(decision.task_mix), s) for s in known]
            judged = [(value, s.version, s) for value, s in worth if np.isfinite(value)]
            best = max(judged)[2] if judged else now
            return Admitted(None, best, "exploration budget spent: the best known blend instead")
        self._explored.append(explores)
        return Admitted(decision)

    def _gain(self, decision: Decision, router: Router, now: Standing) -> float | None:
        """The most that a decision may earn above what is served; None if that cannot be told."""
        if not self._config.min_gain or not hasattr(router, "explain"):
            return None
        worth = now.worth(decision.task_mix)
        return float(router.explain(decision).bound) - worth if np.isfinite(worth) else None
