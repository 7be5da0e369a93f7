"""`Tanbr`: the default router or Algorithm 1, behind ask and tell."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from tanbr.config import read
from tanbr.errors import InputError
from tanbr.router.algorithm1 import Algorithm1
from tanbr.router.ask_tell import AskTell, Policy
from tanbr.router.config import MAY_CHANGE, RouterConfig
from tanbr.router.gp_tree import GpTree
from tanbr.router.sizes import Sizes, as_size
from tanbr.types import Account, as_blend

Mode = Literal["default", "paper"]


class Tanbr(AskTell):
    """The tree-structured adaptive bandit router.

    `experts` is K, `tasks` V, `max_active` B (default K). Mode "default" learns in tens of slots; mode "paper" is
    Algorithm 1 as printed. Same arguments and seed, same choices.
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
        seed = as_size(seed, "seed", least=0)
        if not isinstance(config, RouterConfig):
            config = read(RouterConfig, config or {}, source="config")
        check_settings(config, sizes)
        rng = np.random.default_rng(seed)
        policy: Policy
        if mode == "default":
            policy = GpTree(sizes, config=config.default, rng=rng)
        elif mode == "paper":
            policy = Algorithm1(sizes, config=config.paper, rng=rng)
        else:
            raise InputError(f'mode must be "default" or "paper" (got {mode!r})')
        self.mode, self.config = mode, config
        unused = {"groups", "paper" if mode == "default" else "default"}
        settings = {"mode": mode, "seed": seed, "config": config.model_dump(mode="json", exclude=unused)}
        super().__init__(policy, rng, sizes, settings=settings, history=config.history)

    @property
    def account(self) -> Account | None:
        """What exploration has cost and may cost, in plain numbers; None without a baseline, and in mode "paper"."""
        return self._policy.account if isinstance(self._policy, GpTree) else None

    @classmethod
    def least_numbers(cls, settings: Mapping[str, Any]) -> int:
        """The points of the posterior, or the weights of the network."""
        config, experts = RouterConfig.model_validate(settings["config"]), int(settings["experts"])
        if settings["mode"] == "paper":
            return config.paper.parameters(experts, int(settings["tasks"]))
        return experts * max(config.default.pool, experts) + experts * config.default.room


def check_settings(config: RouterConfig, sizes: Sizes) -> None:
    """Refuse settings that do not go with these sizes."""
    own, tasks = config.default.own_experts, sizes.tasks
    if own and not (len(own) == tasks and all(0 <= expert < sizes.experts for expert in own)):
        raise InputError(f"own_experts must name one of {sizes.experts} experts for each of {tasks} tasks (got {own})")
    harm = config.default.interference
    if harm and (np.shape(harm) != (tasks, tasks) or not np.isfinite(harm).all()):
        raise InputError(f"interference must be a table of {tasks} by {tasks} numbers (got shape {np.shape(harm)})")
    baseline = config.default.baseline
    if baseline == "proportional" and not config.default.own_experts:
        raise InputError(
            'baseline "proportional" needs own_experts, the expert of each task; name them or choose "even"'
        )
    if not isinstance(baseline, str):
        try:
            as_blend(baseline, experts=sizes.experts, max_active=sizes.max_active)
        except InputError as error:
            raise InputError(f"baseline: {error}") from None
