"""The best fixed blend, and the best blend for each of many mixes, by search with labels: what no online method has.

A table of blends with known rewards (a survey's) is enlarged one blend at a time: near the best known for a mix, where
a Gaussian process fitted to the table expects most. Every figure in the table is measured, none is the process's own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from tanbr.errors import InputError
from tanbr.lab.rivals.vector_gp import NOISE, VARIANCE, covariance
from tanbr.router.simplex import keep_largest
from tanbr.types import Blend, FloatArray, Reward, as_blend, as_reward, as_task_mix

Evaluate: TypeAlias = Callable[[Blend], Reward]  # the rewards (V,) of a blend (K,) on held-out rows
STEPS = (0.4, 0.2, 0.1, 0.05)  # of weight moved from one expert to another
INCUMBENTS, DRAWS = 3, 200  # best known blends that are moved from, and random blends beside them
CURIOSITY = 1.0  # standard deviations added to what the process expects


@dataclass(frozen=True, eq=False)
class Table:
    """Blends and their measured rewards."""

    blends: FloatArray  # (N, K)
    rewards: FloatArray  # (N, V)

    def __post_init__(self) -> None:
        fits = self.blends.ndim == self.rewards.ndim == 2 and 0 < len(self.blends) == len(self.rewards)
        if not fits or not np.isfinite(self.rewards).all():
            raise InputError(
                f"a table needs blends (N, K) and finite rewards (N, V) (got {self.blends.shape}, {self.rewards.shape})"
            )

    @cached_property
    def _inverse(self) -> FloatArray:
        return np.asarray(np.linalg.inv(covariance(self.blends, self.blends) + NOISE**2 * np.eye(len(self.blends))))

    def expected(self, blends: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Predict the rewards of blends (n, K): mean (n, V) and standard deviation (n,)."""
        centre = self.rewards.mean(axis=0)
        cross = covariance(blends, self.blends)
        explained = np.einsum("nt,tu,nu->n", cross, self._inverse, cross)
        mean = centre + cross @ (self._inverse @ (self.rewards - centre))
        return mean, np.sqrt(np.maximum(VARIANCE - explained, 1e-12))

    def best_for(self, mix: ArrayLike) -> Blend:
        """Find the blend with the highest measured reward ψᵀr for a mix (V,)."""
        return self.blends[(self.rewards @ as_task_mix(mix, tasks=self.rewards.shape[1])).argmax()]

    def with_row(self, blend: Blend, reward: Reward) -> "Table":
        """Add a blend and its reward."""
        return Table(np.vstack([self.blends, blend]), np.vstack([self.rewards, reward]))


def search(
    evaluate: Evaluate,
    table: Table,
    *,
    mixes: ArrayLike,
    evaluations: int,
    rng: np.random.Generator,
    max_active: int | None = None,
) -> Table:
    """Evaluate more blends, each for the next of the mixes (M, V) in turn; one mix for the best fixed blend."""
    K, V = table.blends.shape[1], table.rewards.shape[1]
    psis = [as_task_mix(mix, tasks=V) for mix in np.atleast_2d(np.array(mixes, dtype=np.float64))]
    for number in range(evaluations):
        psi = psis[number % len(psis)]
        candidates = _unknown(keep_largest(_near(table, psi, rng), max_active or K), table)
        mean, deviation = table.expected(candidates)
        best = (mean @ psi + CURIOSITY * np.linalg.norm(psi) * deviation).argmax()
        blend = as_blend(candidates[best], experts=K, max_active=max_active)
        table = table.with_row(blend, as_reward(evaluate(blend), tasks=V))
    return table


def _near(table: Table, psi: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Lay out candidates (n, K): weight moved between two experts of the best known blends, their means, and draws."""
    K = table.blends.shape[1]
    best = table.blends[np.argsort(-(table.rewards @ psi))[:INCUMBENTS]]
    moves = [
        start + np.minimum(step, start[source]) * (np.eye(K)[target] - np.eye(K)[source])
        for start in best
        for step in STEPS
        for source in np.flatnonzero(start)
        for target in range(K)
        if source != target
    ]
    means = [(one + other) / 2 for i, one in enumerate(best) for other in best[:i]]
    return np.array([*moves, *means, *rng.dirichlet(np.full(K, 0.5), DRAWS)])


def _unknown(candidates: FloatArray, table: Table) -> FloatArray:
    """Leave out the candidates whose reward is known."""
    away = np.abs(candidates[:, None] - table.blends).max(axis=2).min(axis=1)
    return candidates[away > 1e-6]
