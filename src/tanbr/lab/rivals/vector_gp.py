"""GP-UCB with one Gaussian process for all tasks' rewards: every told slot is kept, so a slot costs O(t²)."""

# ruff: noqa: ARG002 - a policy is handed more than each rule needs

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tanbr.router.gp import correlation
from tanbr.router.shell import AskTell, Question, lone_root
from tanbr.router.simplex import Sizes, first_best, keep_largest
from tanbr.types import Blend, Counts, Decision, FloatArray, Reward, Terms, TreeView

CENTRE, VARIANCE, NOISE, BETA = 0.5, 0.08, 0.05, 2.0  # of a reward in [0, 1]
WIDTH = 0.7  # of the Matérn-5/2 kernel, in Euclidean distance between blends
CANDIDATES = 1000


def covariance(left: FloatArray, right: FloatArray) -> FloatArray:
    """Prior covariance of the rewards of blends (n, K) and (m, K): (n, m)."""
    return VARIANCE * correlation(left, right, WIDTH)


@dataclass(frozen=True, eq=False)
class State:
    """What is known after t rewards, at N candidates."""

    candidates: FloatArray  # (N, K)
    blends: FloatArray  # (t, K) told
    rewards: FloatArray  # (t, V) unseen ones filled with the prediction
    inverse: FloatArray  # (t, t) (K + noise·I)⁻¹
    cross: FloatArray  # (N, t) covariance of candidates and told blends
    gain: FloatArray  # (N,) what was told takes this much off a candidate's variance


@dataclass(frozen=True)
class _Policy:
    sizes: Sizes
    panels = False

    def start(self, rng: np.random.Generator) -> State:
        K, V = self.sizes.experts, self.sizes.tasks
        random = rng.dirichlet(np.full(K, 0.5), size=max(CANDIDATES - K - 1, 0))
        blends = np.concatenate([np.eye(K), [np.full(K, 1 / K)], random])
        candidates = keep_largest(blends, self.sizes.max_active)
        N, none = len(candidates), np.zeros((0, 0))
        return State(candidates, np.zeros((0, K)), np.zeros((0, V)), none, np.zeros((N, 0)), np.zeros(N))

    def choose(self, state: State, asked: Question, rng: np.random.Generator) -> Decision:
        mix = asked.task_mix
        mean = CENTRE + state.cross @ (state.inverse @ ((state.rewards - CENTRE) @ mix))
        spread = BETA * np.sqrt(np.maximum(VARIANCE - state.gain, 1e-12) * (mix @ mix))
        best = first_best(mean + spread)
        terms = Terms(float(mean[best]), 0.0, float(spread[best]), candidates=len(mean))
        return asked.decided(state.candidates[best], (terms,))

    def learn(
        self,
        state: State,
        decision: Decision,
        rewards: FloatArray,
        counts: FloatArray,
        rng: np.random.Generator,
    ) -> State:
        return self.warm_start(state, decision.blend, rewards[0], counts[0])

    def warm_start(self, state: State, blend: Blend, reward: Reward, counts: Counts) -> State:
        if not counts.any():
            return state
        row = covariance(blend[None], state.blends)[0]  # (t,)
        predicted = CENTRE + row @ state.inverse @ (state.rewards - CENTRE)
        solved = state.inverse @ row
        left = 1.0 / (VARIANCE + NOISE**2 - row @ solved)  # Schur complement of the new row
        corner = -left * solved
        fresh = covariance(state.candidates, blend[None])[:, 0]
        return State(
            candidates=state.candidates,
            blends=np.vstack([state.blends, blend]),
            rewards=np.vstack([state.rewards, np.where(counts > 0, reward, predicted)]),
            inverse=np.block([[state.inverse + left * np.outer(solved, solved), corner[:, None]], [corner, left]]),
            cross=np.column_stack([state.cross, fresh]),
            gain=state.gain + left * (fresh - state.cross @ solved) ** 2,
        )

    def view(self, state: State) -> TreeView:
        return lone_root(self.sizes.experts, self.sizes.tasks)


class VectorGP(AskTell):
    """Upper confidence bounds of a plain vector-output Gaussian process over 1000 fixed blends."""

    kind = "vector-gp"

    def __init__(self, experts: int, tasks: int, *, max_active: int | None = None, seed: int = 0) -> None:
        sizes = Sizes.check(experts, tasks, max_active)
        super().__init__(_Policy(sizes), sizes, seed=seed, settings={"seed": seed})

    @classmethod
    def least_numbers(cls, settings: Mapping[str, Any]) -> int:
        """The candidates."""
        return int(settings["experts"]) * max(CANDIDATES, int(settings["experts"]))
