"""Routers that follow a rule and learn nothing: a random blend, a constant one, the mix itself, the best of a table."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tanbr.errors import InputError
from tanbr.router.ask_tell import AskTell
from tanbr.router.panel import Candidates, Panel, chosen, panel_of, proportional_blends, task_groups
from tanbr.router.readings import Readings
from tanbr.router.records import Open, Terms, TreeView, lone_root
from tanbr.router.simplex import keep_largest
from tanbr.router.sizes import Sizes, as_size
from tanbr.types import Blend, Counts, FloatArray, Reward, TaskMix, as_blend


def proportional(mix: ArrayLike, *, own: Sequence[int], experts: int) -> Blend:
    """Give every expert the share of its tasks in the mix (V,): a blend (K,); `own` names each task's expert (V,)."""
    blend = np.zeros(experts)
    np.add.at(blend, list(own), np.asarray(mix, dtype=np.float64))
    return blend


@dataclass(frozen=True)
class Nothing:
    """The state of a policy in which nothing changes."""


class _Rule:
    """A policy that learns nothing; subclasses say how to choose."""

    state = Nothing()

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    def choose_panel(self, readings: Readings, models: int, open_slots: list[Open]) -> Panel:
        """Choose G times; without rewards, even groups of tasks say which model serves which."""
        picked = [self.choose(readings.task_mix, open_slots) for _ in range(models)]
        return self._by_groups(np.array([blend for blend, _ in picked]), task_groups(readings, models))

    def _by_groups(self, blends: FloatArray, labels: NDArray[np.intp]) -> Panel:
        belongs = (labels == np.arange(len(blends))[:, None]).astype(np.float64)
        return Panel(blends, belongs, tuple(Terms(float("nan")) for _ in blends))

    def learn_panel(self, mix: TaskMix, panel: Panel, rewards: FloatArray, counts: FloatArray) -> None:
        """Learn nothing."""

    def choose(self, mix: TaskMix, open_slots: list[Open]) -> tuple[Blend, Terms]:
        """Follow the rule."""
        raise NotImplementedError

    def learn(self, mix: TaskMix, blend: Blend, terms: Terms, reward: Reward, counts: Counts) -> None:
        """Learn nothing."""

    def warm_start(self, blend: Blend, reward: Reward, counts: Counts) -> None:
        """Learn nothing."""

    def view(self) -> TreeView:
        return lone_root(self.sizes.experts, self.sizes.tasks)

    def restore(self, state: Nothing) -> None:
        """Nothing changes."""


class _Random(_Rule):
    def __init__(self, sizes: Sizes, rng: np.random.Generator) -> None:
        super().__init__(sizes)
        self.rng = rng

    def choose(self, mix: TaskMix, open_slots: list[Open]) -> tuple[Blend, Terms]:  # noqa: ARG002
        blend = keep_largest(self.rng.dirichlet(np.ones(self.sizes.experts)), self.sizes.max_active)
        return blend, Terms(float("nan"))


class _BestOf(_Rule):
    def __init__(self, sizes: Sizes, blends: FloatArray, rewards: FloatArray) -> None:
        super().__init__(sizes)
        self.blends, self.rewards = blends, rewards

    def choose(self, mix: TaskMix, open_slots: list[Open]) -> tuple[Blend, Terms]:  # noqa: ARG002
        worth = self.rewards @ mix
        best = int(worth.argmax())
        return self.blends[best], Terms(float(worth[best]), candidates=len(worth))

    def choose_panel(self, readings: Readings, models: int, open_slots: list[Open]) -> Panel:
        if np.isnan(self.rewards).any():
            return super().choose_panel(readings, models, open_slots)
        found = Candidates.of(self.blends, self.rewards, np.zeros_like(self.rewards))
        return panel_of(found, chosen(found, readings, models), readings)


class _Proportional(_Rule):
    def __init__(self, sizes: Sizes, own: list[int]) -> None:
        super().__init__(sizes)
        self.own = own

    def choose(self, mix: TaskMix, open_slots: list[Open]) -> tuple[Blend, Terms]:  # noqa: ARG002
        blend = proportional(mix, own=self.own, experts=self.sizes.experts)
        return keep_largest(blend, self.sizes.max_active), Terms(float("nan"))

    def choose_panel(self, readings: Readings, models: int, open_slots: list[Open]) -> Panel:  # noqa: ARG002
        labels = task_groups(readings, models)
        return self._by_groups(proportional_blends(readings, labels, models, own=self.own, sizes=self.sizes), labels)


class RandomBlend(AskTell):
    """An even draw from the simplex in every slot, the B largest weights kept."""

    kind = "random-blend"

    def __init__(self, experts: int, tasks: int, *, max_active: int | None = None, seed: int = 0) -> None:
        sizes = Sizes.check(experts, tasks, max_active)
        rng = np.random.default_rng(as_size(seed, "seed", least=0))
        super().__init__(_Random(sizes, rng), rng, sizes, settings={"seed": seed})


class FixedBlend(AskTell):
    """The same blend in every slot: the one given, or the even one of the first B experts."""

    kind = "fixed-blend"

    def __init__(
        self, experts: int, tasks: int, *, blend: ArrayLike | None = None, max_active: int | None = None
    ) -> None:
        sizes = Sizes.check(experts, tasks, max_active)
        if blend is None:
            blend = np.repeat([1.0 / sizes.max_active, 0.0], [sizes.max_active, sizes.experts - sizes.max_active])
        fixed = as_blend(blend, experts=sizes.experts, max_active=sizes.max_active)
        policy = _BestOf(sizes, fixed[None], np.full((1, sizes.tasks), np.nan))
        super().__init__(policy, np.random.default_rng(0), sizes, settings={"blend": fixed.tolist()})


class Proportional(AskTell):
    """Every expert at the share of its tasks in the mix; `own` names each task's expert (V,), by number if None."""

    kind = "proportional"

    def __init__(
        self, experts: int, tasks: int, *, own: Sequence[int] | None = None, max_active: int | None = None
    ) -> None:
        sizes = Sizes.check(experts, tasks, max_active)
        of_task = [v % sizes.experts for v in range(sizes.tasks)] if own is None else list(own)
        if len(of_task) != sizes.tasks or not set(of_task) <= set(range(sizes.experts)):
            raise InputError(f"own must name one of {experts} experts for each of {tasks} tasks (got {own})")
        super().__init__(_Proportional(sizes, of_task), np.random.default_rng(0), sizes, settings={"own": of_task})


class BestKnown(AskTell):
    """The best blend for the task mix among blends (n, K) whose mean rewards (n, V) are known beforehand."""

    kind = "best-known"

    def __init__(
        self, experts: int, tasks: int, *, blends: ArrayLike, rewards: ArrayLike, max_active: int | None = None
    ) -> None:
        sizes = Sizes.check(experts, tasks, max_active)
        xs, rs = np.array(blends, dtype=np.float64), np.array(rewards, dtype=np.float64)
        if xs.shape != (len(xs), sizes.experts) or rs.shape != (len(xs), sizes.tasks) or not np.isfinite(rs).all():
            wanted = f"blends must be (n, {sizes.experts}) and rewards (n, {sizes.tasks}), all finite"
            raise InputError(f"{wanted} (got {xs.shape} and {rs.shape})")
        for x in xs:
            as_blend(x, experts=sizes.experts, max_active=sizes.max_active)
        settings = {"blends": xs.tolist(), "rewards": rs.tolist()}
        super().__init__(_BestOf(sizes, xs, rs), np.random.default_rng(0), sizes, settings=settings)
