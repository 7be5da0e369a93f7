"""`Tanbr`: the default router or Algorithm 1 behind ask and tell."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tanbr.config import read
from tanbr.errors import InputError
from tanbr.router.choose import Panel
from tanbr.router.config import MAY_CHANGE, RouterConfig
from tanbr.router.default import DefaultPolicy
from tanbr.router.known import FIXED
from tanbr.router.panel import Readings
from tanbr.router.paper import Algorithm1
from tanbr.router.shell import AskTell
from tanbr.router.simplex import Sizes
from tanbr.types import Blend, FloatArray

Mode = Literal["default", "paper"]


class Tanbr(AskTell):
    """The tree-structured adaptive bandit router.

    `experts` is K, `tasks` V, `max_active` B (default K). Mode "default" learns in tens of slots; mode "paper" is
    Algorithm 1 as printed, one blend at a time. Same arguments and seed, same choices.
    """

    kind = "tanbr"
    may_change = MAY_CHANGE

    def __init__(
        self,
        experts: int,
        tasks: int,
        *,
        max_active: int | None = None,
        mode: Mode = "default",
        seed: int = 0,
        config: RouterConfig | dict[str, Any] | None = None,
    ) -> None:
        sizes = Sizes.check(experts, tasks, max_active)
        if not isinstance(config, RouterConfig):
            config = read(RouterConfig, config or {}, source="config")
        if mode not in ("default", "paper"):
            raise InputError(f'mode must be "default" or "paper" (got {mode!r})')
        self.mode, self.config = mode, config
        policy = Algorithm1(sizes, config.paper) if mode == "paper" else DefaultPolicy.of(sizes, config.default)
        settings = {"mode": mode, "seed": seed, "config": config.model_dump(mode="json", include={str(mode)})}
        super().__init__(policy, sizes, seed=seed, settings=settings)

    @property
    def own_experts(self) -> NDArray[np.int64]:
        """The expert of each task (V,), as practice found it or as it was told; −1 where nobody knows."""
        return np.where(self.known.own.any(axis=1), self.known.own.argmax(axis=1), -1)

    @property
    def practises(self) -> bool:
        """Whether it takes rewards from practice, and suggests what to practise."""
        return isinstance(self._policy, DefaultPolicy)

    def practised(self, blend: Blend, gain: FloatArray, errors: FloatArray) -> None:
        """Learn what a blend (K,) gains over the even one on the same logged requests, and the standard errors (V,).

        From then on what is served teaches nothing by itself: its requests are in the log.
        """
        self._state = replace(self._state, known=self._policy.practised(self.known, blend, gain, errors))

    def assign(self, own: FloatArray) -> None:
        """Expect experts to be the tasks' own as likely as this says from now on (V, K); what was told stays."""
        self._state = replace(self._state, known=self._policy.assigned(self.known, own))

    def suggest(self, readings: Readings, *, models: int = 1, optimism: float | None) -> Panel:
        """Suggest G blends to practise for a mix as it is read: those of highest bound at so many deviations.

        With 0, what would be served; the baseline if None. Nothing is decided by it.
        """
        found: Panel = self._policy.suggested(self.known, readings, models, optimism)
        return found

    @classmethod
    def least_numbers(cls, settings: Mapping[str, Any]) -> int:
        """The points of the posterior, or the weights of the network."""
        config, experts = RouterConfig.model_validate(settings["config"]), int(settings["experts"])
        if settings["mode"] == "paper":
            return config.paper.parameters(experts, int(settings["tasks"]))
        return experts * max(FIXED, experts)
