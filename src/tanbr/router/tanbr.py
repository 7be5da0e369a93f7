"""`Tanbr`: the default router or Algorithm 1, over experts or groups of them, behind ask and tell."""

from collections.abc import Mapping
from typing import Any, Literal

from tanbr.config import read
from tanbr.errors import InputError
from tanbr.router.config import MAY_CHANGE, RouterConfig
from tanbr.router.default import GpTree
from tanbr.router.groups import GroupedTree, Groups
from tanbr.router.known import Rules
from tanbr.router.paper import Algorithm1
from tanbr.router.shell import AskTell, Policy
from tanbr.router.simplex import Sizes
from tanbr.types import Account, as_blend

Mode = Literal["default", "paper"]


class Tanbr(AskTell):
    """The tree-structured adaptive bandit router.

    `experts` is K, `tasks` V, `max_active` B (default K). Mode "default" learns in tens of slots; mode "paper" is
    Algorithm 1 as printed, one blend at a time. With `groups`, a partition of the experts into two or more groups, the
    default mode learns over groups and speaks of blends over experts. Same arguments and seed, same choices.
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
        groups: Groups | Mapping[str, Any] | None = None,
    ) -> None:
        sizes = Sizes.check(experts, tasks, max_active)
        if not isinstance(config, RouterConfig):
            config = read(RouterConfig, config or {}, source="config")
        check_settings(config, sizes)
        if mode not in ("default", "paper"):
            raise InputError(f'mode must be "default" or "paper" (got {mode!r})')
        self.mode, self.config, self.groups = mode, config, None if groups is None else as_groups(groups, sizes)
        policy: Policy = GpTree(Rules.of(sizes, config.default))
        if mode == "paper":
            policy = Algorithm1(sizes, config.paper)
        if self.groups is not None:
            if mode == "paper":
                raise InputError('groups of experts need mode "default"; Algorithm 1 knows none')
            policy = GroupedTree(sizes, self.groups, config.default)
        used = config.model_dump(mode="json", include={str(mode)})
        settings = {"mode": mode, "seed": seed, "config": used}
        if self.groups is not None:
            settings["groups"] = self.groups.to_json()
        super().__init__(policy, sizes, seed=seed, settings=settings)

    @property
    def account(self) -> Account | None:
        """What exploration has cost and may cost, in plain numbers; None without a baseline, and in mode "paper"."""
        if isinstance(self._policy, GpTree | GroupedTree):
            return self._policy.account(self._state.known)
        return None

    @classmethod
    def least_numbers(cls, settings: Mapping[str, Any]) -> int:
        """The points of the posterior, or the weights of the network."""
        config, experts = RouterConfig.model_validate(settings["config"]), int(settings["experts"])
        if settings["mode"] == "paper":
            return config.paper.parameters(experts, int(settings["tasks"]))
        width = len(settings["groups"]["groups"]) if "groups" in settings else experts
        return width * max(config.default.pool, width) + width * config.default.room


def as_groups(groups: Groups | Mapping[str, Any], sizes: Sizes) -> Groups:
    """Check that these are groups of a router's experts."""
    groups = groups if isinstance(groups, Groups) else Groups.from_json(groups)
    if groups.experts != sizes.experts or len(groups) < 2:
        raise InputError(
            f"a router needs two groups or more of its {sizes.experts} experts (got {len(groups)} of {groups.experts})"
        )
    return groups


def check_settings(config: RouterConfig, sizes: Sizes) -> None:
    """Refuse settings that do not go with these sizes."""
    own, baseline = config.default.own_experts, config.default.baseline
    if own and not (len(own) == sizes.tasks and all(0 <= expert < sizes.experts for expert in own)):
        raise InputError(
            f"own_experts must name one of {sizes.experts} experts for each of {sizes.tasks} tasks (got {own})"
        )
    if baseline == "proportional" and not own:
        raise InputError(
            'baseline "proportional" needs own_experts, the expert of each task; name them or choose "even"'
        )
    if not isinstance(baseline, str):
        try:
            as_blend(baseline, experts=sizes.experts, max_active=sizes.max_active)
        except InputError as error:
            raise InputError(f"baseline: {error}") from None
