"""Routers that follow a rule and learn nothing: a random blend, a constant one, the mix itself, the best of a table."""

# ruff: noqa: ARG002, D102 - a policy is handed more than each rule needs

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from tanbr.errors import InputError
from tanbr.router.panel import Readings, chosen, group_mixes, proportional_blends, task_groups
from tanbr.router.shell import AskTell, Nothing, Question
from tanbr.router.simplex import Sizes, keep_largest
from tanbr.types import Blend, Counts, Decision, FloatArray, Reward, Terms, as_blend, as_task_mix

Rule: TypeAlias = Callable[[Question, Readings, np.random.Generator], Decision]


class RivalPolicy:
    """What the policies of rivals have in common: a reward teaches the same whether it was asked for or not."""

    sizes: Sizes
    panels = False

    def start(self, rng: np.random.Generator) -> Any:
        return Nothing()

    def learn(
        self, state: Any, decision: Decision, rewards: FloatArray, counts: FloatArray, rng: np.random.Generator
    ) -> Any:
        return self.warm_start(state, decision.blend, rewards[0], counts[0])

    def warm_start(self, state: Any, blend: Blend, reward: Reward, counts: Counts) -> Any:
        return state

    def expected(self, state: Any) -> FloatArray:
        return np.full((1, self.sizes.tasks), np.nan)


@dataclass(frozen=True)
class _Policy(RivalPolicy):
    """Follows a rule and learns nothing."""

    sizes: Sizes
    rule: Rule
    panels = True

    def choose(self, state: Nothing, asked: Question, rng: np.random.Generator) -> Decision:
        return self.rule(asked, Readings.of(asked.task_mix, asked.confusion), rng)


def _for_groups(asked: Question, readings: Readings, blends: FloatArray) -> Decision:
    """Serve G blends whose rewards are unknown: even groups of tasks say which model serves which."""
    groups = task_groups(readings, asked.models)
    belongs = (groups == np.arange(len(blends))[:, None]).astype(np.float64)
    return asked.decided(blends, tuple(Terms(float("nan")) for _ in blends), estimates=belongs)


class RandomBlend(AskTell):
    """An even draw from the simplex in every slot, the B largest weights kept."""

    kind = "random-blend"

    def __init__(self, experts: int, tasks: int, *, max_active: int | None = None, seed: int = 0) -> None:
        sizes = Sizes.check(experts, tasks, max_active)

        def rule(asked: Question, readings: Readings, rng: np.random.Generator) -> Decision:
            drawn = rng.dirichlet(np.ones(sizes.experts), size=asked.models)
            return _for_groups(asked, readings, keep_largest(drawn, sizes.max_active))

        super().__init__(_Policy(sizes, rule), sizes, seed=seed, settings={"seed": seed})


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

        def rule(asked: Question, readings: Readings, _: np.random.Generator) -> Decision:
            return _for_groups(asked, readings, np.tile(fixed, (asked.models, 1)))

        super().__init__(_Policy(sizes, rule), sizes, settings={"blend": fixed.tolist()})


class Proportional(AskTell):
    """Every expert at the share of its tasks: `own` names each task's expert (V,), or shares tasks out (V, K)."""

    kind = "proportional"

    def __init__(
        self, experts: int, tasks: int, *, own: ArrayLike | None = None, max_active: int | None = None
    ) -> None:
        sizes = Sizes.check(experts, tasks, max_active)
        of_task = np.arange(sizes.tasks) % sizes.experts if own is None else np.asarray(own)
        shared = of_task.shape == (sizes.tasks, sizes.experts)
        if not shared and (of_task.shape != (sizes.tasks,) or not set(of_task.tolist()) <= set(range(sizes.experts))):
            raise InputError(f"own must name one of {experts} experts for each of {tasks} tasks (got {own!r})")

        def rule(asked: Question, readings: Readings, _: np.random.Generator) -> Decision:
            groups = task_groups(readings, asked.models)
            blends = proportional_blends(readings, groups, asked.models, own=of_task, sizes=sizes)
            return _for_groups(asked, readings, blends)

        super().__init__(_Policy(sizes, rule), sizes, settings={"own": of_task.tolist()})


class BestKnown(AskTell):
    """The best blends among some (n, K) of known mean rewards (n, V): of every slot's mix, or of one for ever."""

    kind = "best-known"

    def __init__(
        self,
        experts: int,
        tasks: int,
        *,
        blends: ArrayLike,
        rewards: ArrayLike,
        mix: ArrayLike | None = None,
        max_active: int | None = None,
    ) -> None:
        sizes = Sizes.check(experts, tasks, max_active)
        xs, rs = np.array(blends, dtype=np.float64), np.array(rewards, dtype=np.float64)
        if xs.shape != (len(xs), sizes.experts) or rs.shape != (len(xs), sizes.tasks) or not np.isfinite(rs).all():
            wanted = f"blends must be (n, {sizes.experts}) and rewards (n, {sizes.tasks}), all finite"
            raise InputError(f"{wanted} (got {xs.shape} and {rs.shape})")
        for x in xs:
            as_blend(x, experts=sizes.experts, max_active=sizes.max_active)
        forever = None if mix is None else as_task_mix(mix, tasks=sizes.tasks)

        def rule(asked: Question, readings: Readings, _: np.random.Generator) -> Decision:
            rows = chosen(rs, readings if forever is None else Readings.of(forever, asked.confusion), asked.models)
            mixes = group_mixes(rs[rows], readings)
            terms = tuple(Terms(float(of @ rs[row]), candidates=len(xs)) for row, of in zip(rows, mixes, strict=True))
            return asked.decided(xs[rows], terms, estimates=rs[rows])

        settings = {"blends": xs.tolist(), "rewards": rs.tolist(), "mix": None if forever is None else forever.tolist()}
        super().__init__(_Policy(sizes, rule), sizes, settings=settings)
