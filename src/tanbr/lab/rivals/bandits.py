"""Routers that learn from rewards, without a tree: NUCB, a Gaussian process, and probing every expert first."""

# ruff: noqa: ARG002 - a policy is handed more than each rule needs

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tanbr.lab.rivals.rules import RivalPolicy
from tanbr.router.config import PaperModeConfig
from tanbr.router.gp import correlation
from tanbr.router.paper import Belief, bound, first_belief, learned
from tanbr.router.shell import AskTell, Question
from tanbr.router.simplex import Sizes, first_best, keep_largest
from tanbr.types import Blend, Counts, Decision, FloatArray, Reward, Terms

DRAWS = 20  # candidate blends of NUCB a slot, the paper's figure
CENTRE, VARIANCE, NOISE, BETA = 0.5, 0.08, 0.05, 2.0  # of a reward in [0, 1], as the process sees it
WIDTH = 0.7  # of its Matérn-5/2 kernel, in Euclidean distance between blends
CANDIDATES = 1000  # blends of the process
ENOUGH = 16  # rewards of a task at each expert that is probed, before one is assigned
SHARE = 0.25  # of a task in the mix, from which it is worth serving all requests by one expert to probe for it


@dataclass(frozen=True)
class _NucbPolicy(RivalPolicy):
    """Lines 6, 13 and 14 of Algorithm 1 over random candidates instead of a tree's leaves."""

    sizes: Sizes
    config: PaperModeConfig

    def start(self, rng: np.random.Generator) -> Belief:
        return first_belief(self.sizes, self.config, rng)

    def choose(self, state: Belief, asked: Question, rng: np.random.Generator) -> Decision:
        blends = keep_largest(rng.dirichlet(np.ones(self.sizes.experts), size=DRAWS), self.sizes.max_active)
        mean, width = bound(state, self.config, blends, asked.task_mix)
        best = first_best(mean + width)
        return asked.decided(blends[best], (Terms(float(mean[best]), 0.0, float(width[best]), candidates=DRAWS),))

    def learn(
        self, state: Belief, decision: Decision, rewards: FloatArray, counts: FloatArray, rng: np.random.Generator
    ) -> Belief:
        belief = replace(state, t=state.t + 1)
        return learned(belief, self.config, decision.task_mix, decision.blend, rewards[0], counts[0])

    def warm_start(self, state: Belief, blend: Blend, reward: Reward, counts: Counts) -> Belief:
        return learned(state, self.config, np.full(len(reward), 1.0 / len(reward)), blend, reward, counts)


class Nucb(AskTell):
    """The paper's nearest rival: neural UCB over random blends in every slot; the last 1000 slots are trained on."""

    kind = "nucb"

    def __init__(
        self,
        experts: int,
        tasks: int,
        *,
        max_active: int | None = None,
        seed: int = 0,
        config: PaperModeConfig | None = None,
    ) -> None:
        sizes = Sizes.check(experts, tasks, max_active)
        config = PaperModeConfig.model_validate(config or {"memory": 1000})
        settings = {"seed": seed, "config": config.model_dump(mode="json")}
        super().__init__(_NucbPolicy(sizes, config), sizes, seed=seed, settings=settings)

    @classmethod
    def least_numbers(cls, settings: Mapping[str, Any]) -> int:
        """The weights of the network."""
        config = PaperModeConfig.model_validate(settings["config"])
        return config.parameters(int(settings["experts"]), int(settings["tasks"]))


def covariance(left: FloatArray, right: FloatArray) -> FloatArray:
    """Prior covariance of the rewards of blends (n, K) and (m, K): (n, m)."""
    return VARIANCE * correlation(left, right, WIDTH)


@dataclass(frozen=True, eq=False)
class _Process:
    """What is known after t rewards, at N candidates."""

    candidates: FloatArray  # (N, K)
    blends: FloatArray  # (t, K) told
    rewards: FloatArray  # (t, V) unseen ones filled with the prediction
    inverse: FloatArray  # (t, t) (K + noise·I)⁻¹
    cross: FloatArray  # (N, t) covariance of candidates and told blends
    gain: FloatArray  # (N,) what was told takes this much off a candidate's variance


@dataclass(frozen=True)
class _GPPolicy(RivalPolicy):
    sizes: Sizes

    def start(self, rng: np.random.Generator) -> _Process:
        K, V = self.sizes.experts, self.sizes.tasks
        random = rng.dirichlet(np.full(K, 0.5), size=max(CANDIDATES - K - 1, 0))
        blends = np.concatenate([np.eye(K), [np.full(K, 1 / K)], random])
        candidates = keep_largest(blends, self.sizes.max_active)
        N, none = len(candidates), np.zeros((0, 0))
        return _Process(candidates, np.zeros((0, K)), np.zeros((0, V)), none, np.zeros((N, 0)), np.zeros(N))

    def choose(self, state: _Process, asked: Question, rng: np.random.Generator) -> Decision:
        mix = asked.task_mix
        mean = CENTRE + state.cross @ (state.inverse @ ((state.rewards - CENTRE) @ mix))
        spread = BETA * np.sqrt(np.maximum(VARIANCE - state.gain, 1e-12) * (mix @ mix))
        best = first_best(mean + spread)
        terms = Terms(float(mean[best]), 0.0, float(spread[best]), candidates=len(mean))
        return asked.decided(state.candidates[best], (terms,))

    def warm_start(self, state: _Process, blend: Blend, reward: Reward, counts: Counts) -> _Process:
        if not counts.any():
            return state
        row = covariance(blend[None], state.blends)[0]  # (t,)
        predicted = CENTRE + row @ state.inverse @ (state.rewards - CENTRE)
        solved = state.inverse @ row
        left = 1.0 / (VARIANCE + NOISE**2 - row @ solved)  # Schur complement of the new row
        corner = -left * solved
        fresh = covariance(state.candidates, blend[None])[:, 0]
        return _Process(
            candidates=state.candidates,
            blends=np.vstack([state.blends, blend]),
            rewards=np.vstack([state.rewards, np.where(counts > 0, reward, predicted)]),
            inverse=np.block([[state.inverse + left * np.outer(solved, solved), corner[:, None]], [corner, left]]),
            cross=np.column_stack([state.cross, fresh]),
            gain=state.gain + left * (fresh - state.cross @ solved) ** 2,
        )


class VectorGP(AskTell):
    """GP-UCB with one process for all tasks' rewards over 1000 fixed blends; a slot costs O(t²)."""

    kind = "vector-gp"

    def __init__(self, experts: int, tasks: int, *, max_active: int | None = None, seed: int = 0) -> None:
        sizes = Sizes.check(experts, tasks, max_active)
        super().__init__(_GPPolicy(sizes), sizes, seed=seed, settings={"seed": seed})

    @classmethod
    def least_numbers(cls, settings: Mapping[str, Any]) -> int:
        """The candidates."""
        return int(settings["experts"]) * max(CANDIDATES, int(settings["experts"]))


@dataclass(frozen=True, eq=False)
class _Probed:
    """What each expert alone has earned so far."""

    sums: FloatArray  # (K, V)
    counts: FloatArray  # (K, V)


@dataclass(frozen=True)
class _ProbingPolicy(RivalPolicy):
    sizes: Sizes

    def start(self, rng: np.random.Generator) -> _Probed:
        return _Probed(*np.zeros((2, self.sizes.experts, self.sizes.tasks)))

    def choose(self, state: _Probed, asked: Question, rng: np.random.Generator) -> Decision:
        frequent = asked.task_mix >= SHARE
        lacking = np.maximum(ENOUGH - state.counts, 0.0) @ frequent  # (K,)
        mean = state.sums / np.maximum(state.counts, 1.0)
        best = mean == mean.max(axis=0)  # a task that was never probed for is shared out evenly
        blend = (best / best.sum(axis=0)) @ asked.task_mix
        if lacking.any():
            blend = np.eye(self.sizes.experts)[int(lacking.argmax())]
        return asked.decided(blend, (Terms(float("nan")),))

    def warm_start(self, state: _Probed, blend: Blend, reward: Reward, counts: Counts) -> _Probed:
        alone = (blend > 0.999).astype(np.float64)[:, None]  # (K, 1), all 0 for a blend of several
        return _Probed(state.sums + alone * np.where(counts > 0, reward * counts, 0.0), state.counts + alone * counts)


class ProbeAndAssign(AskTell):
    """Every expert alone until each task's best is known, then each task to its best; users pay for its probes."""

    kind = "probing"

    def __init__(self, experts: int, tasks: int) -> None:
        sizes = Sizes.check(experts, tasks, None)
        super().__init__(_ProbingPolicy(sizes), sizes, settings={})
