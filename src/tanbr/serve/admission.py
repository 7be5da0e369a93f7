"""Whether the router's choice is served: the least gain worth a merge, the exploration budget."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tanbr.router.panel import Readings, chosen, group_mixes
from tanbr.serve.config import ServeConfig
from tanbr.serve.records import Reason
from tanbr.types import Blend, Decision, FloatArray, TaskMix


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
    """What to serve, one blend or a panel of different ones, and why."""

    blends: FloatArray  # (G, K)
    reason: Reason
    note: str = ""
    versions: tuple[int | None, ...] = ()  # (G,) of blends that had a number before; empty if none had
    decision: Decision | None = None  # the router's, if it is its choice
    estimates: FloatArray | None = None  # (G, V) what each task is taken to earn at each; None for one blend

    @classmethod
    def one(
        cls, blend: Blend, reason: Reason, note: str = "", version: int | None = None, decision: Decision | None = None
    ) -> "Choice":
        """Choose one blend (K,) for everything."""
        return cls(np.asarray(blend)[None], reason, note, (version,), decision)

    @classmethod
    def of(cls, decision: Decision) -> "Choice":
        """Take what the router chose; blends that it names twice are one model."""
        return replace(cls.panel(decision.blends, decision.estimates, Reason.CHOSEN), decision=decision)

    @classmethod
    def panel(cls, blends: FloatArray, estimates: FloatArray, reason: Reason, note: str = "") -> "Choice":
        """Choose a panel; equal blends become one model, which is as good for a task as the better of them."""
        first = [next(i for i, other in enumerate(blends) if np.array_equal(blend, other)) for blend in blends]
        rows = sorted(set(first))
        best = np.array([estimates[[i for i, f in enumerate(first) if f == row]].max(axis=0) for row in rows])
        return cls(blends[rows], reason, note, estimates=best if len(rows) > 1 else None)

    @property
    def blend(self) -> Blend:
        """Blend (K,) of the first model."""
        return np.asarray(self.blends[0])

    @property
    def version(self) -> int | None:
        """Number that the first model had before, if it had one."""
        return self.versions[0] if self.versions else None

    def mixes(self, mix: TaskMix) -> FloatArray:
        """The mix of the tasks that each model answers (G, V), of a mix (V,)."""
        return mix[None] if self.estimates is None else group_mixes(self.estimates, Readings.of(mix))


def best_known(known: Sequence[KnownVersion], mix: TaskMix) -> KnownVersion | None:
    """Find the version that has earned most for a mix (V,); None if none was rewarded for all of its tasks."""
    judged = [(value, one.version, one) for one in known if np.isfinite(value := one.worth(mix))]
    return max(judged)[2] if judged else None


def best_panel(known: Sequence[KnownVersion], mix: TaskMix, models: int) -> Choice | None:
    """Find up to G versions that together have earned most for a mix (V,); None if a task of it was never rewarded."""
    if not known or not np.isfinite(panel_worth(known, mix)):
        return None
    earned = np.array([np.where(one.counts >= 1, one.sums / np.maximum(one.counts, 1), 0.0) for one in known])
    rows = sorted(set(chosen(earned, Readings.of(mix), min(models, len(known))).tolist()))
    blends = np.array([known[row].blend for row in rows])
    best = Choice.panel(blends, earned[rows], Reason.BEST, "no rewards any more: the best known blends")
    return replace(best, versions=tuple(known[row].version for row in rows))


def panel_worth(models: Sequence[KnownVersion], mix: TaskMix) -> float:
    """Reward for a mix (V,) if each task goes to the model that has earned most with it; NaN if none has for one."""
    there = mix > 1e-3
    means = [np.where(one.counts >= 1, one.sums / np.maximum(one.counts, 1), -np.inf) for one in models]
    best = np.max(means, axis=0)[there]
    return float(mix[there] @ best / mix[there].sum()) if np.isfinite(best).all() else float("nan")


class Admission:
    """Looks at a decision before anything is merged for it."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._explored: deque[bool] = deque(maxlen=config.guard.exploration_window)

    def admit(
        self,
        decision: Decision,
        bound: float,
        now: Sequence[KnownVersion],
        known: Sequence[KnownVersion],
        kept: Choice,
    ) -> Choice:
        """Let a decision pass that may earn `bound`, or name what to serve instead.

        `now` are the versions that answer, `kept` what serves them on, `known` the good versions.
        """
        wanted = Choice.of(decision)
        if {blend.tobytes() for blend in wanted.blends} == {one.blend.tobytes() for one in now}:
            self._explored.append(False)
            return wanted
        gain = bound - panel_worth(now, decision.task_mix)  # NaN if that cannot be told
        if gain < self._config.min_gain:
            self._explored.append(False)
            return replace(kept, reason=Reason.KEPT, note=f"skipped: at most {gain:.3f} to gain")
        explores = any(self._unknown(blend, known) for blend in wanted.blends)
        budget = self._config.guard.exploration
        if explores and budget < 1 and (sum(self._explored) + 1) > budget * (len(self._explored) + 1):
            self._explored.append(False)
            note, best = "exploration budget spent: the best known blend", best_known(known, decision.task_mix)
            if len(now) > 1 or best is None:
                return replace(kept, reason=Reason.BEST, note=note)
            return Choice.one(best.blend, Reason.BEST, note, best.version)
        self._explored.append(explores)
        return wanted

    def _unknown(self, blend: Blend, known: Sequence[KnownVersion]) -> bool:
        """Whether a blend (K,) has too few rewards to be known."""
        counts = [float(one.counts.sum()) for one in known if np.array_equal(one.blend, blend)]
        return sum(counts) < self._config.guard.least_count
