"""GP-UCB with one Gaussian process for all tasks' rewards: every told slot is kept, so a slot costs O(t²)."""

import numpy as np

from tanbr.router.ask_tell import AskTell
from tanbr.router.records import Terms, TreeView, lone_root
from tanbr.router.simplex import keep_largest
from tanbr.router.sizes import Sizes, as_size
from tanbr.state import Arrays
from tanbr.types import Blend, Counts, FloatArray, Reward, TaskMix

CENTRE, VARIANCE, NOISE, BETA = 0.5, 0.08, 0.05, 2.0  # of a reward in [0, 1]
WIDTH = 0.7  # of the Matérn-5/2 kernel, in Euclidean distance between blends
CANDIDATES = 1000


def matern(left: FloatArray, right: FloatArray) -> FloatArray:
    """Prior covariance of the rewards of blends (n, K) and (m, K): (n, m)."""
    squared = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2.0 * (left @ right.T)
    r = np.sqrt(5.0 * np.maximum(squared, 0.0)) / WIDTH
    return np.asarray(VARIANCE * (1.0 + r + r * r / 3.0) * np.exp(-r))


class _Policy:
    def __init__(self, sizes: Sizes, rng: np.random.Generator) -> None:
        experts, tasks = sizes.experts, sizes.tasks
        random = rng.dirichlet(np.full(experts, 0.5), size=max(CANDIDATES - experts - 1, 0))
        blends = np.concatenate([np.eye(experts), [np.full(experts, 1 / experts)], random])
        self.candidates = keep_largest(blends, sizes.max_active)  # (N, K)
        self.blends = np.zeros((0, experts))  # (t, K) told
        self.rewards = np.zeros((0, tasks))  # (t, V) unseen ones filled with the prediction
        self.inverse = np.zeros((0, 0))  # (K + noise·I)⁻¹
        self.cross = np.zeros((len(self.candidates), 0))  # (N, t)
        self.gain = np.zeros(len(self.candidates))

    def choose(self, mix: TaskMix, open_blends: list[Blend]) -> tuple[Blend, Terms]:  # noqa: ARG002
        mean = CENTRE + self.cross @ (self.inverse @ ((self.rewards - CENTRE) @ mix))
        spread = BETA * np.sqrt(np.maximum(VARIANCE - self.gain, 1e-12) * (mix @ mix))
        best = int((mean + spread).argmax())
        return self.candidates[best], Terms(float(mean[best]), 0.0, float(spread[best]), candidates=len(mean))

    def learn(self, mix: TaskMix, blend: Blend, terms: Terms, reward: Reward, counts: Counts) -> None:  # noqa: ARG002
        self.warm_start(blend, reward, counts)

    def warm_start(self, blend: Blend, reward: Reward, counts: Counts) -> None:
        if not counts.any():
            return
        row = matern(blend[None], self.blends)[0]  # (t,)
        predicted = CENTRE + row @ self.inverse @ (self.rewards - CENTRE)
        solved = self.inverse @ row
        left = 1.0 / (VARIANCE + NOISE**2 - row @ solved)  # Schur complement of the new row
        corner = -left * solved
        self.inverse = np.block([[self.inverse + left * np.outer(solved, solved), corner[:, None]], [corner, left]])
        fresh = matern(self.candidates, blend[None])[:, 0]
        self.gain += left * (fresh - self.cross @ solved) ** 2
        self.cross = np.column_stack([self.cross, fresh])
        self.blends = np.vstack([self.blends, blend])
        self.rewards = np.vstack([self.rewards, np.where(counts > 0, reward, predicted)])

    def view(self) -> TreeView:
        return lone_root(self.candidates.shape[1], self.rewards.shape[1])

    def snapshot(self) -> Arrays:
        return {name: getattr(self, name) for name in ("candidates", "blends", "rewards", "inverse", "cross", "gain")}

    def restore(self, arrays: Arrays) -> None:
        for name in self.snapshot():
            setattr(self, name, arrays[name].copy())


class VectorGP(AskTell):
    """Upper confidence bounds of a plain vector-output Gaussian process over 1000 fixed blends."""

    kind = "vector-gp"

    def __init__(self, experts: int, tasks: int, *, max_active: int | None = None, seed: int = 0) -> None:
        sizes = Sizes.check(experts, tasks, max_active)
        rng = np.random.default_rng(as_size(seed, "seed", least=0))
        super().__init__(_Policy(sizes, rng), rng, sizes, settings={"seed": seed})
