"""The blend that needs no reward: what is served until rewards speak for another."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from tanbr.errors import ConfigError, InputError
from tanbr.router.panel import Readings, chosen, proportional_blends, task_groups
from tanbr.router.simplex import Sizes, keep_largest
from tanbr.serve.survey import Survey
from tanbr.types import Blend, FloatArray, TaskMix, as_blend

NEAR = 0.05  # two start blends whose weights differ by no more in all are not worth a merge


class StartBlend:
    """Even, every expert at its task's share of the mix, the best surveyed one for the mix, or given weights."""

    def __init__(
        self,
        kind: Literal["even", "proportional"] | Sequence[float] | None,
        *,
        experts: int,
        own_experts: Sequence[int] = (),
        max_active: int | None = None,
        survey: Survey | None = None,
    ) -> None:
        """Choose the kind; `own_experts` (V,) is the expert of each task, empty where that is not known.

        A survey counts if no kind is named.
        """
        self._survey = survey if kind is None else None
        self._own: FloatArray | None = None  # (V, K)
        most = max_active or experts
        if kind is None:
            kind = "proportional" if own_experts else "even"
        if kind == "proportional":
            if not own_experts:
                raise ConfigError(
                    "a proportional blend needs a checkpoint that names its experts' tasks, and a --history that tells "
                    "the tasks apart; choose even"
                )
            self._own = np.eye(experts)[list(own_experts)]
        self._most = most
        try:
            even = keep_largest(np.full((1, experts), 1.0 / experts), most)[0]
            self._fixed = as_blend(even if isinstance(kind, str) else kind, experts=experts, max_active=most)
        except InputError as error:
            raise ConfigError(f"serve.blend: {error}") from None

    def __call__(self, mix: TaskMix, served: Blend | None = None) -> Blend:
        """Give the blend (K,) for a mix (V,); the served one if that is near enough."""
        blend = self._fixed
        if self._survey is not None:
            blend = self._survey.best_for(mix)
        elif self._own is not None:
            blend = keep_largest((mix @ self._own)[None], self._most)[0]
        return served if served is not None and np.abs(served - blend).sum() <= NEAR else blend

    def panel(self, readings: Readings, served: FloatArray, *, models: int) -> tuple[FloatArray, FloatArray]:
        """Give up to G > 1 blends (n, K) for a mix as it is read, and what each task is taken to earn at each (n, V).

        The best surveyed panel, or groups of tasks that blend their experts by their shares; where neither is known,
        one blend. One of those `served` (m, K) stands for a blend that is near enough to it.
        """
        mix = readings.task_mix
        blends, estimates = self(mix)[None].copy(), np.ones((1, len(mix)))
        if self._survey is not None:
            known = np.nan_to_num(self._survey.rewards)
            rows = chosen(known, readings, models)
            blends, estimates = self._survey.blends[rows].copy(), known[rows]
        elif self._own is not None:
            groups = min(models, len(mix))
            labels = task_groups(readings, groups)
            sizes = Sizes(self._own.shape[1], len(mix), self._most)
            blends = proportional_blends(readings, labels, groups, own=self._own.argmax(axis=1).tolist(), sizes=sizes)
            estimates = (labels == np.arange(groups)[:, None]).astype(np.float64)
        for old in served:
            far = np.abs(blends - old).sum(axis=1)
            if far.min() <= NEAR:
                blends[far.argmin()] = old
        return blends, estimates
