"""A router for many experts: it learns over groups of them, and splits a group in two once rewards show that it counts.

A blend over M groups stands for one blend over K experts (`tanbr.groups`), so that the router inside has M dimensions
to explore instead of K. A split gives it one more. Every reward was earned by a blend over experts, and that blend has
its place among the new groups, too: the router of the new groups is taught them all, and starts where the old one was.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tanbr.config import read
from tanbr.errors import InputError
from tanbr.groups import Groups
from tanbr.router.ask_tell import AskTell
from tanbr.router.config import MAY_CHANGE, DefaultModeConfig, RouterConfig
from tanbr.router.gp_tree import GpTree, GpTreeState
from tanbr.router.panel import Panel
from tanbr.router.readings import Readings
from tanbr.router.records import Open, Terms, TreeView
from tanbr.router.simplex import keep_largest
from tanbr.router.sizes import Sizes, as_size
from tanbr.router.tanbr import check_settings
from tanbr.types import Account, Blend, Counts, FloatArray, PanelDecision, Reward, TaskMix

RECALLED = 64  # told blends that are found again among the groups without rounding


@dataclass(frozen=True, eq=False)
class GroupedState:
    """Everything that changes in a `GroupedTree`."""

    splits: NDArray[np.int64]  # (n,) groups that were split, in order
    settled: int  # slots told since the last
    served: FloatArray  # (M,) weights of the groups in these slots, summed
    blends: FloatArray  # (n, K) blends that were told
    sums: FloatArray  # (n, V) of their rewards
    counts: FloatArray  # (n, V) requests behind them
    chosen: FloatArray  # (m, K) chosen blends that were told last
    chosen_groups: FloatArray  # (m, M) the same over groups
    past: FloatArray  # (7,) accounts of the routers before the last split
    inner: GpTreeState


class GroupedTree:
    """The default policy over groups; speaks of blends over experts."""

    def __init__(self, sizes: Sizes, groups: Groups, *, config: RouterConfig, seed: int) -> None:
        self.sizes, self.config, self.seed = sizes, config, seed
        self._first = groups
        self._blends, (self._sums, self._counts) = np.zeros((0, sizes.experts)), np.zeros((2, 0, sizes.tasks))
        self._past = np.zeros(7)
        self._regroup(groups, ())

    def _regroup(self, groups: Groups, splits: tuple[int, ...]) -> None:
        """Begin again with these groups, knowing nothing of rewards."""
        self.groups, self.splits = groups, splits
        sizes = Sizes(len(groups), self.sizes.tasks, min(self.sizes.max_active, len(groups)))
        rng = np.random.default_rng((self.seed, len(splits)) if splits else self.seed)
        self.inner = GpTree(sizes, config=_over_groups(self.config.default, self.sizes, groups), rng=rng)
        self._settled, self._served = 0, np.zeros(len(groups))
        self._chosen: dict[bytes, tuple[Blend, FloatArray]] = {}  # by the bytes of a blend over experts

    def choose(self, mix: TaskMix, open_slots: list[Open]) -> tuple[Blend, Terms]:
        """Choose over groups."""
        blend, terms = self.inner.choose(mix, [self._grouped(slot) for slot in open_slots])
        return self._of_experts(blend), replace(terms, groups=tuple(blend.tolist()))

    def choose_panel(self, readings: Readings, models: int, open_slots: list[Open]) -> Panel:
        """Choose G blends over groups."""
        panel = self.inner.choose_panel(readings, models, [self._grouped(slot) for slot in open_slots])
        terms = (replace(why, groups=tuple(y.tolist())) for why, y in zip(panel.terms, panel.blends, strict=True))
        return replace(panel, blends=self._of_experts(panel.blends), terms=tuple(terms))

    def learn(self, mix: TaskMix, blend: Blend, terms: Terms, reward: Reward, counts: Counts) -> None:
        """Learn over groups, keep the reward for those to come, and split a group where that is due."""
        among = self._told_at(blend, terms)
        self.inner.learn(mix, among, terms, reward, counts)
        self._keep(blend, reward, counts)
        self._turn(among)

    def learn_panel(self, readings: Readings, panel: Panel, rewards: FloatArray, counts: FloatArray) -> None:
        """Learn from all models, one slot in all."""
        among = np.array([self._told_at(*one) for one in zip(panel.blends, panel.terms, strict=True)])
        self.inner.learn_panel(readings, replace(panel, blends=among), rewards, counts)
        for blend, reward, count in zip(panel.blends, rewards, counts, strict=True):
            self._keep(blend, reward, count)
        self._turn(among.mean(axis=0))

    def warm_start(self, blend: Blend, reward: Reward, counts: Counts) -> None:
        """Learn a reward of any blend over experts as that of its groups."""
        self.inner.warm_start(self._among(blend), reward, counts)
        self._keep(blend, reward, counts)

    def _of_experts(self, blends: FloatArray) -> FloatArray:
        """Blends over experts (…, K) of those over groups (…, M)."""
        return self.groups.expand(blends, max_active=self.sizes.max_active)

    def _told_at(self, blend: Blend, terms: Terms) -> FloatArray:
        """Find a told blend (K,) among the groups (M,), and remember it for rewards that come for it again."""
        among = self._among(blend, terms.groups)
        self._chosen.pop(blend.tobytes(), None)
        self._chosen[blend.tobytes()] = blend, among
        if len(self._chosen) > RECALLED:
            self._chosen.pop(next(iter(self._chosen)))
        return among

    def _among(self, blend: Blend, groups: tuple[float, ...] = ()) -> FloatArray:
        """Find a blend (K,) among the groups (M,): as it was chosen, bit for bit, if none was split since."""
        if len(groups) == len(self.groups):
            return np.array(groups)
        known = self._chosen.get(np.asarray(blend).tobytes())
        return self.groups.project(blend) if known is None else known[1]

    def _grouped(self, slot: Open) -> Open:
        """Say of an open slot's blends over experts what they are over groups."""
        over = np.array([self._among(x, why.groups) for x, why in zip(slot.blends, slot.why, strict=True)])
        if isinstance(slot.decision, PanelDecision):
            return replace(slot, decision=replace(slot.decision, blends=over))
        return replace(slot, decision=replace(slot.decision, blend=over[0]))

    def _keep(self, blend: Blend, reward: Reward, counts: Counts) -> None:
        if not self.config.groups.splits or not counts.any():
            return
        same = np.flatnonzero((self._blends == blend).all(axis=1))
        row = int(same[0]) if len(same) else len(self._blends)
        if not len(same):
            self._blends = np.concatenate([self._blends, blend[None]])
            self._sums, self._counts = (np.pad(table, ((0, 1), (0, 0))) for table in (self._sums, self._counts))
        self._sums[row] += np.where(counts > 0, reward, 0.0) * counts
        self._counts[row] += counts
        if len(self._blends) > self.config.groups.known:
            kept = np.delete(np.arange(len(self._blends)), self._counts[:-1].sum(axis=1).argmin())
            self._blends, self._sums, self._counts = self._blends[kept], self._sums[kept], self._counts[kept]

    def _turn(self, among: FloatArray) -> None:
        """Count a told slot, and split the group that was served most if that is due."""
        config = self.config.groups
        self._settled += 1
        self._served += among
        if len(self.splits) >= config.splits or self._settled < config.settle:
            return
        account = self.inner.account
        if account is not None and account.balance < 0:
            return  # a router that begins again must not be let off its debts
        share = np.where([isinstance(node, tuple) for node in self.groups.nodes], self._served / self._settled, 0.0)
        if share.max() >= config.share:
            self._split(int(share.argmax()))
        else:
            self._settled, self._served = 0, np.zeros(len(self.groups))

    def _split(self, group: int) -> None:
        if (account := self.inner.account) is not None:
            self._past += _numbers(account)
        self._regroup(self.groups.split(group), (*self.splits, group))
        for blend, sums, counts in zip(self._blends, self._sums, self._counts, strict=True):
            reward = np.where(counts > 0, sums / np.maximum(counts, 1e-300), np.nan)
            self.inner.warm_start(self.groups.project(blend), np.clip(reward, 0.0, 1.0), counts)

    @property
    def account(self) -> Account | None:
        """What exploration has cost and may cost, over all splits; None without a baseline."""
        now = self.inner.account
        if now is None:
            return None
        slots, explored, swaps, *sums = (_numbers(now) + self._past).tolist()
        return Account(int(slots), int(explored), int(swaps), *sums)

    def view(self) -> TreeView:
        """Show the tree over groups, its blends over experts."""
        view = self.inner.view()
        return replace(view, blend=self._of_experts(view.blend))

    @property
    def state(self) -> GroupedState:
        """Everything that changes, as one value."""
        rows = list(self._chosen.values())
        return GroupedState(
            splits=np.array(self.splits, dtype=np.int64), settled=self._settled, served=self._served.copy(),
            blends=self._blends.copy(), sums=self._sums.copy(), counts=self._counts.copy(),
            chosen=np.array([x for x, _ in rows]).reshape(-1, self.sizes.experts),
            chosen_groups=np.array([y for _, y in rows]).reshape(-1, len(self.groups)),
            past=self._past.copy(), inner=self.inner.state,
        )  # fmt: skip

    def restore(self, state: GroupedState) -> None:
        """Undo to what `state` was."""
        groups = self._first
        for group in state.splits.tolist():
            groups = groups.split(group)
        self._regroup(groups, tuple(state.splits.tolist()))
        self.inner.restore(state.inner)
        self._settled, self._served, self._past = state.settled, state.served.copy(), state.past.copy()
        self._blends, self._sums, self._counts = state.blends.copy(), state.sums.copy(), state.counts.copy()
        self._chosen = {x.tobytes(): (x, y) for x, y in zip(state.chosen, state.chosen_groups, strict=True)}


def _over_groups(config: DefaultModeConfig, sizes: Sizes, groups: Groups) -> DefaultModeConfig:
    """Say of groups what the settings say of experts: whose tasks are whose, and the baseline."""
    update: dict[str, Any] = {"own_experts": tuple(int(groups.of_expert[k]) for k in config.own_experts)}
    if config.baseline not in ("none", "proportional"):
        even = np.full(sizes.experts, 1.0 / sizes.experts)
        over = groups.project(even if config.baseline == "even" else np.array(config.baseline))
        update["baseline"] = tuple(keep_largest(over, min(sizes.max_active, len(groups))).tolist())
    return config.model_copy(update=update)


def _numbers(account: Account) -> FloatArray:
    return np.array(list(vars(account).values()), dtype=np.float64)


class GroupedRouter(AskTell):
    """`Tanbr` over groups of experts; it asks and tells in blends over experts.

    `experts` is K, `tasks` V, `max_active` B (default K), `groups` a partition of the experts into two or more groups.
    Same arguments and seed, same choices. `splits`, `settle` and the rest are settings (`RouterConfig.groups`).
    """

    kind = "grouped"
    may_change = MAY_CHANGE

    def __init__(
        self,
        experts: int,
        tasks: int,
        *,
        groups: Groups | Mapping[str, Any],
        max_active: int | None = None,
        seed: int = 0,
        config: RouterConfig | dict[str, Any] | None = None,
    ) -> None:
        sizes, seed = Sizes.check(experts, tasks, max_active), as_size(seed, "seed", least=0)
        self.first_groups = groups if isinstance(groups, Groups) else Groups.from_json(groups)
        if self.first_groups.experts != sizes.experts or len(self.first_groups) < 2:
            raise InputError(
                f"a router needs two groups or more of its {sizes.experts} experts "
                f"(got {len(self.first_groups)} of {self.first_groups.experts})"
            )
        if not isinstance(config, RouterConfig):
            config = read(RouterConfig, config or {}, source="config")
        check_settings(config, sizes)
        self.config = config
        self._grouped = GroupedTree(sizes, self.first_groups, config=config, seed=seed)
        used = config.model_dump(mode="json", exclude={"paper"})
        settings = {"groups": self.first_groups.to_json(), "seed": seed, "config": used}
        super().__init__(self._grouped, np.random.default_rng(seed), sizes, settings=settings, history=config.history)

    @property
    def groups(self) -> Groups:
        """The groups as they are now, split or not."""
        return self._grouped.groups

    @property
    def account(self) -> Account | None:
        """What exploration has cost and may cost, in plain numbers; None without a baseline."""
        return self._grouped.account

    @classmethod
    def least_numbers(cls, settings: Mapping[str, Any]) -> int:
        """The points of the posterior over the first groups."""
        config, groups = RouterConfig.model_validate(settings["config"]), len(settings["groups"]["groups"])
        return groups * max(config.default.pool, groups) + groups * config.default.room
