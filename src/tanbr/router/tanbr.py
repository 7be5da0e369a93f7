"""Algorithm 1."""

from typing import Any, Literal

import numpy as np

from tanbr.config import RouterConfig
from tanbr.errors import InputError
from tanbr.router.ask_tell import AskTell, Policy, as_size
from tanbr.router.pooled import PooledTanbr

Mode = Literal["default", "paper"]


class Tanbr(AskTell):
    """The tree-structured adaptive bandit router.

    `experts` is K, `tasks` V, `max_active` B (default K). Mode "default" learns in tens of slots; mode "paper" is
    Algorithm 1 as printed.
    """

    kind = "tanbr"

    def __init__(
        self,
        experts: int,
        tasks: int,
        *,
        max_active: int | None = None,
        mode: Mode = "default",
        seed: int = 0,
        config: RouterConfig | None = None,
    ) -> None:
        experts = as_size(experts, "experts", least=2)
        tasks = as_size(tasks, "tasks", least=1)
        max_active = experts if max_active is None else as_size(max_active, "max_active", least=1, most=experts)
        seed = as_size(seed, "seed", least=0)
        config = RouterConfig.model_validate(config or {})
        rng = np.random.default_rng(seed)
        sizes = {"experts": experts, "tasks": tasks, "max_active": max_active}
        policy: Policy
        if mode == "default":
            policy = PooledTanbr(**sizes, config=config.default, rng=rng)
        else:
            raise InputError(f'mode must be "default" or "paper" (got {mode!r})')
        self.mode, self.config = mode, config
        settings: dict[str, Any] = {**sizes, "mode": mode, "seed": seed, "config": config.model_dump(mode="json")}
        super().__init__(policy, rng, **sizes, history=config.history, settings=settings)
