"""What is served without asking the router: what an operator pinned, and the start blend."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tanbr.errors import ConfigError, InputError
from tanbr.router.panel import Readings, proportional_panel
from tanbr.router.simplex import Sizes, keep_largest
from tanbr.types import Blend, FloatArray, as_blend

NEAR = 0.05  # two start blends whose weights differ by no more in all are not worth a merge


@dataclass(frozen=True, eq=False)
class Pin:
    """What an operator wants served."""

    blend: Blend  # (K,)
    version: int


class StartBlend:
    """The blend that needs no reward: even, each expert at its task's share of the mix, or given weights."""

    def __init__(
        self,
        kind: Literal["even", "proportional"] | Sequence[float] | None,
        *,
        experts: int,
        own_experts: Sequence[int] = (),
        max_active: int | None = None,
        groups: Sequence[int] = (),
    ) -> None:
        """Choose the kind; `own_experts` (V,) is the expert of each task, empty where that is not known.

        `groups` (V,) is the model of each task, where somebody measured which tasks lose least by sharing one.
        """
        self._groups = tuple(groups)
        self._own = list(own_experts) if kind in (None, "proportional") else []
        if kind == "proportional" and not own_experts:
            raise ConfigError(
                "a proportional blend needs a checkpoint that names its experts' tasks, and a --history that tells "
                "the tasks apart; choose even"
            )
        self._most = max_active or experts
        try:
            even = keep_largest(np.full((1, experts), 1.0 / experts), self._most)[0]
            fixed = even if kind is None or isinstance(kind, str) else kind
            self._fixed = as_blend(fixed, experts=experts, max_active=self._most)
        except InputError as error:
            raise ConfigError(f"serve.blend: {error}") from None

    def __call__(self, readings: Readings, served: FloatArray, *, models: int) -> tuple[FloatArray, FloatArray]:
        """Give up to G blends (n, K) for a mix as it is read, and what each task is taken to earn at each (n, V).

        A blend that is `served` (m, K) already stands for one that is near enough to it.
        """
        tasks = len(readings.task_mix)
        blends, estimates = self._fixed[None].copy(), np.ones((1, tasks))
        if self._own:
            count, sizes = min(models, tasks), Sizes(len(self._fixed), tasks, self._most)
            blends, home = proportional_panel(readings, count, own=self._own, groups=self._groups, sizes=sizes)
            estimates = (home == np.arange(count)[:, None]).astype(np.float64)
        for old in served:
            far = np.abs(blends - old).sum(axis=1)
            if far.min() <= NEAR:
                blends[far.argmin()] = old
        return blends, estimates
