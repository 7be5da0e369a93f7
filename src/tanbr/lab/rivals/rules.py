"""Routers that follow a rule and learn nothing: a random blend, a constant one, the mix itself, the best of a table."""

# ruff: noqa: ARG002 - a policy is handed more than each rule needs

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tanbr.errors import InputError
from tanbr.router.panel import Readings, chosen, group_mixes, proportional_blends, task_groups
from tanbr.router.shell import AskTell, Question, lone_root
from tanbr.router.simplex import Sizes, keep_largest
from tanbr.types import Blend, Counts, Decision, FloatArray, Reward, TaskMix, Terms, TreeView, as_blend

NAN = float("nan")


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

    panels = True

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    def start(self, rng: np.random.Generator) -> Nothing:
        return Nothing()

    def choose(self, state: Nothing, asked: Question, rng: np.random.Generator) -> Decision:
        """Follow the rule G times; without rewards, even groups of tasks say which model serves which."""
        blends = np.array([self.one(asked.task_mix, rng) for _ in range(asked.models)])
        return self._by_groups(asked, blends, task_groups(Readings.of(asked.task_mix, asked.confusion), asked.models))

    def _by_groups(self, asked: Question, blends: FloatArray, labels: NDArray[np.intp]) -> Decision:
        belongs = (labels == np.arange(len(blends))[:, None]).astype(np.float64)
        return asked.decided(blends, tuple(Terms(NAN) for _ in blends), estimates=belongs)

    def one(self, mix: TaskMix, rng: np.random.Generator) -> Blend:
        """Follow the rule."""
        raise NotImplementedError

    def learn(
        self,
        state: Nothing,
        decision: Decision,
        rewards: FloatArray,
        counts: FloatArray,
        rng: np.random.Generator,
    ) -> Nothing:
        return state

    def warm_start(self, state: Nothing, blend: Blend, reward: Reward, counts: Counts) -> Nothing:
        return state

    def view(self, state: Nothing) -> TreeView:
        return lone_root(self.sizes.experts, self.sizes.tasks)


class _Random(_Rule):
    def one(self, mix: TaskMix, rng: np.random.Generator) -> Blend:
        return keep_largest(rng.dirichlet(np.ones(self.sizes.experts)), self.sizes.max_active)


class _Fixed(_Rule):
    def __init__(self, sizes: Sizes, blend: Blend) -> None:
        super().__init__(sizes)
        self.blend = blend

    def one(self, mix: TaskMix, rng: np.random.Generator) -> Blend:
        return self.blend


class _BestOf(_Rule):
    def __init__(self, sizes: Sizes, blends: FloatArray, rewards: FloatArray) -> None:
        super().__init__(sizes)
        self.blends, self.rewards = blends, rewards

    def choose(self, state: Nothing, asked: Question, rng: np.random.Generator) -> Decision:
        readings = Readings.of(asked.task_mix, asked.confusion)
        rows = chosen(self.rewards, readings, asked.models)
        mixes = group_mixes(self.rewards[rows], readings)
        why = (float(mix @ self.rewards[row]) for row, mix in zip(rows, mixes, strict=True))
        terms = tuple(Terms(mean, candidates=len(self.blends)) for mean in why)
        return asked.decided(self.blends[rows], terms, estimates=self.rewards[rows])


class _Proportional(_Rule):
    def __init__(self, sizes: Sizes, own: list[int]) -> None:
        super().__init__(sizes)
        self.own = own

    def choose(self, state: Nothing, asked: Question, rng: np.random.Generator) -> Decision:
        readings = Readings.of(asked.task_mix, asked.confusion)
        labels = task_groups(readings, asked.models)
        blends = proportional_blends(readings, labels, asked.models, own=self.own, sizes=self.sizes)
        return self._by_groups(asked, blends, labels)


class RandomBlend(AskTell):
    """An even draw from the simplex in every slot, the B largest weights kept."""

    kind = "random-blend"

    def __init__(self, experts: int, tasks: int, *, max_active: int | None = None, seed: int = 0) -> None:
        sizes = Sizes.check(experts, tasks, max_active)
        super().__init__(_Random(sizes), sizes, seed=seed, settings={"seed": seed})


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
        super().__init__(_Fixed(sizes, fixed), sizes, settings={"blend": fixed.tolist()})


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
        super().__init__(_Proportional(sizes, of_task), sizes, settings={"own": of_task})


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
        super().__init__(_BestOf(sizes, xs, rs), sizes, settings=settings)
