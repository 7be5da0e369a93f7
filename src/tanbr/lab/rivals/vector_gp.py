"""GP-UCB with one Gaussian process for all tasks' rewards: every told slot is kept, so a slot costs O(t²)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tanbr.router.argmax import first_best
from tanbr.router.ask_tell import AskTell
from tanbr.router.kernel import correlation
from tanbr.router.panel import Candidates, ModelByModel, Panel, chosen, panel_of
from tanbr.router.readings import Readings
from tanbr.router.records import Open, Terms, TreeView, lone_root
from tanbr.router.simplex import keep_largest
from tanbr.router.sizes import Sizes, as_size
from tanbr.types import Blend, Counts, FloatArray, Reward, TaskMix

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


class _Policy(ModelByModel):
    def __init__(self, sizes: Sizes, rng: np.random.Generator) -> None:
        K, V = self.experts, self.tasks = sizes.experts, sizes.tasks
        random = rng.dirichlet(np.full(K, 0.5), size=max(CANDIDATES - K - 1, 0))
        blends = np.concatenate([np.eye(K), [np.full(K, 1 / K)], random])
        candidates = keep_largest(blends, sizes.max_active)
        N, none = len(candidates), np.zeros((0, 0))
        self.state = State(candidates, np.zeros((0, K)), np.zeros((0, V)), none, np.zeros((N, 0)), np.zeros(N))

    def choose(self, mix: TaskMix, open_slots: list[Open]) -> tuple[Blend, Terms]:  # noqa: ARG002
        known = self.state
        mean = CENTRE + known.cross @ (known.inverse @ ((known.rewards - CENTRE) @ mix))
        spread = BETA * np.sqrt(np.maximum(VARIANCE - known.gain, 1e-12) * (mix @ mix))
        best = first_best(mean + spread)
        return known.candidates[best], Terms(float(mean[best]), 0.0, float(spread[best]), candidates=len(mean))

    def choose_panel(self, readings: Readings, models: int, open_slots: list[Open]) -> Panel:  # noqa: ARG002
        known = self.state
        mean = CENTRE + known.cross @ (known.inverse @ (known.rewards - CENTRE))
        spread = BETA * np.sqrt(np.maximum(VARIANCE - known.gain, 1e-12) * (readings.task_mix @ readings.task_mix))
        found = Candidates.of(known.candidates, mean, np.repeat(spread[:, None], self.tasks, axis=1))
        return panel_of(found, chosen(found, readings, models), readings)

    def learn(self, mix: TaskMix, blend: Blend, terms: Terms, reward: Reward, counts: Counts) -> None:  # noqa: ARG002
        self.warm_start(blend, reward, counts)

    def warm_start(self, blend: Blend, reward: Reward, counts: Counts) -> None:
        if not counts.any():
            return
        known = self.state
        row = covariance(blend[None], known.blends)[0]  # (t,)
        predicted = CENTRE + row @ known.inverse @ (known.rewards - CENTRE)
        solved = known.inverse @ row
        left = 1.0 / (VARIANCE + NOISE**2 - row @ solved)  # Schur complement of the new row
        corner = -left * solved
        fresh = covariance(known.candidates, blend[None])[:, 0]
        self.state = State(
            candidates=known.candidates,
            blends=np.vstack([known.blends, blend]),
            rewards=np.vstack([known.rewards, np.where(counts > 0, reward, predicted)]),
            inverse=np.block([[known.inverse + left * np.outer(solved, solved), corner[:, None]], [corner, left]]),
            cross=np.column_stack([known.cross, fresh]),
            gain=known.gain + left * (fresh - known.cross @ solved) ** 2,
        )

    def view(self) -> TreeView:
        return lone_root(self.experts, self.tasks)

    def restore(self, state: State) -> None:
        self.state = state


class VectorGP(AskTell):
    """Upper confidence bounds of a plain vector-output Gaussian process over 1000 fixed blends."""

    kind = "vector-gp"

    def __init__(self, experts: int, tasks: int, *, max_active: int | None = None, seed: int = 0) -> None:
        sizes = Sizes.check(experts, tasks, max_active)
        rng = np.random.default_rng(as_size(seed, "seed", least=0))
        super().__init__(_Policy(sizes, rng), rng, sizes, settings={"seed": seed})

    @classmethod
    def least_numbers(cls, settings: Mapping[str, Any]) -> int:
        """The candidates."""
        return int(settings["experts"]) * max(CANDIDATES, int(settings["experts"]))
