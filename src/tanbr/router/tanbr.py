"""`Tanbr`: the default router or Algorithm 1 behind ask and tell."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tanbr.config import read
from tanbr.errors import InputError
from tanbr.router.config import MAY_CHANGE, RouterConfig
from tanbr.router.default import DefaultPolicy
from tanbr.router.known import FIXED
from tanbr.router.paper import Algorithm1
from tanbr.router.shell import AskTell
from tanbr.router.simplex import Sizes
from tanbr.types import FloatArray

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
        return np.where(self.chances.any(axis=1), self.chances.argmax(axis=1), -1)

    @property
    def chances(self) -> FloatArray:
        """How likely each expert is to be a task's own (V, K), as practice found it or as it was told; 0 if unknown."""
        own: FloatArray = self._state.known.own
        return own

    @property
    def has_practised(self) -> bool:
        """Whether it was told what practice found; what is served teaches it nothing since."""
        return bool(self._state.known.practised)

    @property
    def earned(self) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        """Blends (n, K) that were told, their rewards (n, V) and the requests behind these.

        None in mode "paper", and after practice: then only gains over the even blend are known.
        """
        if not isinstance(self._policy, DefaultPolicy) or self._state.known.practised:
            return None
        pool = self._state.known.posterior
        return pool.arms, pool.means, pool.weights

    @classmethod
    def least_numbers(cls, settings: Mapping[str, Any]) -> int:
        """The points of the posterior, or the weights of the network."""
        config, experts = RouterConfig.model_validate(settings["config"]), int(settings["experts"])
        if settings["mode"] == "paper":
            return config.paper.parameters(experts, int(settings["tasks"]))
        return experts * max(FIXED, experts)
