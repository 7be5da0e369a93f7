"""Harder reward maps than the study's own, in two suites: one to try settings on, one that is only run at the end.

`HARD` has what `tanbr.lab.paper.reward_maps` softened: decoys whose hill is nearly as high as the peak, decoys
whose peak is narrow, sigmoids three times as steep. `HELD` has other shapes; no constant may be chosen on it.
"""

from collections.abc import Callable

import numpy as np

from tanbr.lab.paper.reward_maps import FAMILIES, RewardMap
from tanbr.types import FloatArray

Family = Callable[[int, int, np.random.Generator], RewardMap]


def _apart(left: FloatArray, right: FloatArray) -> FloatArray:
    """Squared distances of blends (n, K) and (m, K): (n, m)."""
    return np.asarray(((left[:, None] - right[None]) ** 2).sum(axis=2))


def _logistic(z: FloatArray) -> FloatArray:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(z, -60, 60))))


def _decoys(experts: int, tasks: int, rng: np.random.Generator, *, hill: tuple[float, float], peak: float) -> RewardMap:
    """Put up a broad hill of a share `hill` of the peak's height, and a peak of this width elsewhere."""
    top = rng.dirichlet(np.full(experts, 2.0 / experts))
    lure = top
    while np.linalg.norm(top - lure) < 0.6:
        lure = rng.dirichlet(np.full(experts, 2.0 / experts))
    centre = 0.85 * top + 0.15 * rng.dirichlet(np.ones(experts), size=tasks)  # (V, K)
    high = rng.uniform(0.75, 0.95, tasks)
    low = high * rng.uniform(*hill, tasks)

    def rewards(blends: FloatArray) -> FloatArray:
        broad = low * np.exp(-_apart(blends, lure[None]) / (2 * 0.8**2))
        return np.asarray(np.maximum(broad, high * np.exp(-_apart(blends, centre) / (2 * peak**2))))

    return rewards


def high_decoys(experts: int, tasks: int, rng: np.random.Generator) -> RewardMap:
    """A hill of .9 of the peak's height."""
    return _decoys(experts, tasks, rng, hill=(0.9, 0.9), peak=0.45)


def narrow_decoys(experts: int, tasks: int, rng: np.random.Generator) -> RewardMap:
    """A peak that few blends show."""
    return _decoys(experts, tasks, rng, hill=(0.55, 0.75), peak=0.38)


def steep_sigmoids(experts: int, tasks: int, rng: np.random.Generator) -> RewardMap:
    """Experts that help or harm, and disturb each other in pairs, three times as steeply."""
    helps = rng.normal(0.0, 4.5, (tasks, experts))
    clash = np.triu(rng.random((experts, experts)) < 0.4, 1) * rng.exponential(7.5, (experts, experts))
    boost = np.triu(rng.random((experts, experts)) < 0.2, 1) * rng.exponential(7.5, (experts, experts))
    pairs = boost - clash
    return lambda blends: _logistic(blends @ helps.T + np.einsum("nk,kj,nj->n", blends, pairs, blends)[:, None])


def three_hills(experts: int, tasks: int, rng: np.random.Generator) -> RewardMap:
    """Give every task three pointed hills of its own; the highest is the narrowest."""
    centre = rng.dirichlet(np.full(experts, 0.3), size=(3, tasks))  # (3, V, K)
    height = rng.uniform(0.7, 0.9, tasks) * np.array([1.0, 0.85, 0.7])[:, None]
    width = np.array([0.35, 0.55, 0.8])

    def rewards(blends: FloatArray) -> FloatArray:
        hills = [h * np.exp(-np.sqrt(_apart(blends, c)) / w) for c, h, w in zip(centre, height, width, strict=True)]
        return np.asarray(0.05 + np.max(hills, axis=0))

    return rewards


def ridges(experts: int, tasks: int, rng: np.random.Generator) -> RewardMap:
    """Two ridges across the simplex a task, the second lower and broader."""
    way = rng.normal(size=(2, tasks, experts))  # (2, V, K)
    crest = np.einsum("rvk,vk->rv", way, rng.dirichlet(np.full(experts, 0.5), size=tasks))
    height = rng.uniform(0.6, 0.85, tasks) * np.array([1.0, 0.8])[:, None]
    width = np.array([0.5, 0.9])[:, None]

    def rewards(blends: FloatArray) -> FloatArray:
        off = np.einsum("rvk,nk->nrv", way, blends) - crest
        return np.asarray(0.1 + (height * np.exp(-(off**2) / (2 * width**2))).max(axis=1))

    return rewards


def cliffs(experts: int, tasks: int, rng: np.random.Generator) -> RewardMap:
    """A task is solved once its two experts have enough of the blend, and spoilt where a third has too much."""
    own = np.array([rng.choice(experts, size=3, replace=False) for _ in range(tasks)])  # (V, 3)
    share, much = rng.uniform(0.15, 0.4, tasks), rng.uniform(0.3, 0.6, tasks)
    steep, height = rng.uniform(8, 25, tasks), rng.uniform(0.5, 0.8, tasks)

    def rewards(blends: FloatArray) -> FloatArray:
        pair = blends[:, own[:, 0]] + 0.6 * blends[:, own[:, 1]]  # (n, V)
        solved, spoilt = _logistic(steep * (pair - share)), _logistic(steep * (blends[:, own[:, 2]] - much))
        return np.asarray(0.1 + height * solved * (1.0 - spoilt))

    return rewards


def waves(experts: int, tasks: int, rng: np.random.Generator) -> RewardMap:
    """Draw a smooth random function a task: a sum of plane waves."""
    ways = rng.normal(size=(64, experts)) / 0.45
    phase, weight = rng.uniform(0, 2 * np.pi, 64), rng.normal(size=(64, tasks)) / 8
    return lambda blends: _logistic(2.5 * np.sqrt(2) * np.cos(blends @ ways.T + phase) @ weight)


HARD: dict[str, Family] = {
    "high decoys": high_decoys, "narrow decoys": narrow_decoys, "steep sigmoids": steep_sigmoids,
}  # fmt: skip
HELD: dict[str, Family] = {"three hills": three_hills, "ridges": ridges, "cliffs": cliffs, "waves": waves}
SUITES: dict[str, dict[str, Family]] = {"own": FAMILIES, "hard": HARD, "held": HELD}
MAPS: dict[str, Family] = {**FAMILIES, **HARD, **HELD}  # the order is part of a world's seed
