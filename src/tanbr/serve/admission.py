"""Whether the router's choice is served: the least gain worth a merge, the exploration budget."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tanbr.serve.config import ServeConfig
from tanbr.serve.records import Reason
from tanbr.types import Blend, Decision, FloatArray, TaskMix, Terms


@dataclass(frozen=True, eq=False)
class KnownVersion:
    """A merge version and what its rewards say."""

    version: int
    blend: Blend  # (K,)
    sums: FloatArray  # (V,) of rewards
    counts: FloatArray  # (V,)

    def worth(self, mix: TaskMix) -> float:
        """Mean reward ψᵀr for a mix (V,); NaN if a task of it was never rewarded."""
        there = mix > 1e-3
        if (self.counts[there] < 1).any():
            return float("nan")
        return float(mix[there] @ (self.sums[there] / self.counts[there]) / mix[there].sum())


@dataclass(frozen=True, eq=False)
class Choice:
    """A blend to serve, and why."""

    blend: Blend  # (K,)
    reason: Reason
    note: str = ""
    version: int | None = None  # if the blend had a number before
    decision: Decision | None = None  # the router's, if the blend is its choice


def best_known(known: Sequence[KnownVersion], mix: TaskMix) -> KnownVersion | None:
    """Find the version that has earned most for a mix (V,); None if none was rewarded for all of its tasks."""
    judged = [(value, one.version, one) for one in known if np.isfinite(value := one.worth(mix))]
    return max(judged)[2] if judged else None


class Admission:
    """Looks at a decision before anything is merged for it."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._explored: deque[bool] = deque(maxlen=config.guard.exploration_window)

    def admit(self, decision: Decision, terms: Terms, now: KnownVersion, known: Sequence[KnownVersion]) -> Choice:
        """Let a decision pass, or name the version to serve instead; `known` are the good versions."""
        chosen = Choice(decision.blend, Reason.CHOSEN, decision=decision)
        if np.array_equal(decision.blend, now.blend):
            self._explored.append(False)
            return chosen
        gain = terms.bound - now.worth(decision.task_mix)  # NaN if that cannot be told
        if gain < self._config.min_gain:
            self._explored.append(False)
            return Choice(now.blend, Reason.KEPT, f"skipped: at most {gain:.3f} to gain", now.version)
        same = [one for one in known if np.array_equal(one.blend, decision.blend)]
        explores = sum(float(one.counts.sum()) for one in same) < self._config.guard.least_count
        budget = self._config.guard.exploration
        if explores and budget < 1 and (sum(self._explored) + 1) > budget * (len(self._explored) + 1):
            self._explored.append(False)
            best = best_known(known, decision.task_mix) or now
            return Choice(best.blend, Reason.BEST, "exploration budget spent: the best known blend", best.version)
        self._explored.append(explores)
        return chosen
