"""Reward maps f*: blend (n, K) to the mean reward of V tasks (n, V) in [0, 1]. Each is drawn from a seed.

`OWN` are the maps of the study. `HARD` are harder ones: decoys whose hill is nearly as high as the peak, decoys whose
peak is narrow, sigmoids three times as steep. `HELD` have other shapes; no constant may be chosen on them.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np

from tanbr.router.simplex import keep_largest
from tanbr.types import FloatArray

RewardMap: TypeAlias = Callable[[FloatArray], FloatArray]  # mean rewards (n, V) of blends (n, K)
Family: TypeAlias = Callable[[int, int, np.random.Generator], RewardMap]  # of K, V and a generator


def _squared(left: FloatArray, right: FloatArray) -> FloatArray:
    """Squared distances of blends (n, K) and (m, K): (n, m)."""
    return np.asarray(((left[:, None] - right[None]) ** 2).sum(axis=2))


def _logistic(z: FloatArray) -> FloatArray:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(z, -60, 60))))


def bumps(experts: int, tasks: int, rng: np.random.Generator) -> RewardMap:
    """One Gaussian bump per task, each around its own blend of a few experts."""
    centre = rng.dirichlet(np.full(experts, 2.0 / experts), size=tasks)  # (V, K)
    width, height = rng.uniform(0.3, 0.6, tasks), rng.uniform(0.55, 0.85, tasks)
    return lambda blends: 0.1 + height * np.exp(-_squared(blends, centre) / (2 * width**2))


def sigmoids(experts: int, tasks: int, rng: np.random.Generator, *, steepness: float = 1.0) -> RewardMap:
    """Each expert helps some tasks; pairs of experts disturb each other when both are in the blend."""
    helps = rng.normal(0.0, 1.5 * steepness, (tasks, experts))
    clash = np.triu(rng.random((experts, experts)) < 0.4, 1) * rng.exponential(2.5 * steepness, (experts, experts))
    boost = np.triu(rng.random((experts, experts)) < 0.2, 1) * rng.exponential(2.5 * steepness, (experts, experts))
    pairs = boost - clash
    return lambda blends: _logistic(blends @ helps.T + np.einsum("nk,kj,nj->n", blends, pairs, blends)[:, None])


def merged_networks(experts: int, tasks: int, rng: np.random.Generator) -> RewardMap:
    """Average parameters truly: K small networks tuned from one start on different tasks; soft accuracy as reward."""
    inputs, hidden, rows = 6, 16, 96
    data = rng.normal(size=(2 * rows, inputs))
    teacher = np.tanh(data @ rng.normal(size=(inputs, 12)) / 1.5) @ rng.normal(size=(12, tasks))
    label = np.sign(teacher - np.median(teacher, axis=0))  # (2·rows, V)
    start = (rng.normal(size=(inputs, hidden)) / np.sqrt(inputs), rng.normal(size=(hidden, tasks)) * 0.1)
    focus = rng.dirichlet(np.full(tasks, 0.25), size=experts) * tasks  # (K, V)
    tuned = []
    for weight in focus:
        drifted = (start[0] + 0.4 * rng.normal(size=start[0].shape), start[1] + 0.1 * rng.normal(size=start[1].shape))
        tuned.append(_train(drifted, data[:rows], label[:rows], weight))
    first = np.array([weights[0].ravel() for weights in tuned])  # (K, inputs·hidden)
    second = np.array([weights[1].ravel() for weights in tuned])
    test, truth = data[rows:], label[rows:]

    def rewards(blends: FloatArray) -> FloatArray:
        out = np.empty((len(blends), tasks))
        for i in range(0, len(blends), 256):
            part = blends[i : i + 256]
            layer = np.maximum(test @ (part @ first).reshape(-1, inputs, hidden), 0.0)  # (n, rows, hidden)
            logit = layer @ (part @ second).reshape(-1, hidden, tasks)
            out[i : i + 256] = (1.0 / (1.0 + np.exp(np.clip(-truth * logit, -30, 30)))).mean(axis=1)
        return out

    return rewards


def _train(
    start: tuple[FloatArray, FloatArray], data: FloatArray, label: FloatArray, weight: FloatArray
) -> tuple[FloatArray, FloatArray]:
    first, second = start[0].copy(), start[1].copy()
    for _ in range(400):
        layer = np.maximum(data @ first, 0.0)
        slope = -label * weight / (1.0 + np.exp(np.clip(label * (layer @ second), -30, 30))) / len(data)
        back = (slope @ second.T) * (layer > 0)
        second -= 0.7 * (layer.T @ slope)
        first -= 0.7 * (data.T @ back)
    return first, second


def decoys(
    experts: int,
    tasks: int,
    rng: np.random.Generator,
    *,
    hill: tuple[float, float] = (0.45, 0.6),
    of_peak: bool = False,
    width: float = 0.45,
) -> RewardMap:
    """Put up a broad hill, of a height in `hill` (a share of the peak's `of_peak`), and a peak of this `width`."""
    peak = rng.dirichlet(np.full(experts, 2.0 / experts))
    lure = peak
    while np.linalg.norm(peak - lure) < 0.6:
        lure = rng.dirichlet(np.full(experts, 2.0 / experts))
    centre = 0.85 * peak + 0.15 * rng.dirichlet(np.ones(experts), size=tasks)  # (V, K)
    high = rng.uniform(0.75, 0.95, tasks)
    low = rng.uniform(*hill, tasks) * (high if of_peak else 1.0)

    def rewards(blends: FloatArray) -> FloatArray:
        broad = low * np.exp(-_squared(blends, lure[None]) / (2 * 0.8**2))
        return np.asarray(np.maximum(broad, high * np.exp(-_squared(blends, centre) / (2 * width**2))))

    return rewards


def three_hills(experts: int, tasks: int, rng: np.random.Generator) -> RewardMap:
    """Give every task three pointed hills of its own; the highest is the narrowest."""
    centre = rng.dirichlet(np.full(experts, 0.3), size=(3, tasks))  # (3, V, K)
    height = rng.uniform(0.7, 0.9, tasks) * np.array([1.0, 0.85, 0.7])[:, None]
    width = np.array([0.35, 0.55, 0.8])

    def rewards(blends: FloatArray) -> FloatArray:
        hills = [h * np.exp(-np.sqrt(_squared(blends, c)) / w) for c, h, w in zip(centre, height, width, strict=True)]
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


OWN: dict[str, Family] = {
    "bumps": bumps,
    "sigmoids": sigmoids,
    "merged networks": merged_networks,
    "decoys": decoys,
}
HARD: dict[str, Family] = {
    "high decoys": partial(decoys, hill=(0.9, 0.9), of_peak=True),
    "narrow decoys": partial(decoys, hill=(0.55, 0.75), of_peak=True, width=0.38),
    "steep sigmoids": partial(sigmoids, steepness=3.0),
}
HELD: dict[str, Family] = {"three hills": three_hills, "ridges": ridges, "cliffs": cliffs, "waves": waves}
SUITES: dict[str, dict[str, Family]] = {"own": OWN, "hard": HARD, "held": HELD}
MAPS: dict[str, Family] = {**OWN, **HARD, **HELD}  # the order is part of a world's seed


class BestBlends:
    """Best reachable ψᵀf*(x) over blends of at most B experts, by dense search and local refinement."""

    def __init__(self, reward: RewardMap, *, experts: int, max_active: int, seed: int) -> None:
        self._reward, self._most, self._rng = reward, max_active, np.random.default_rng(seed)
        sparse = [self._rng.dirichlet(np.full(experts, a), size=3000) for a in (0.1, 0.3, 1.0)]
        blends = np.concatenate([np.eye(experts), np.full((1, experts), 1 / experts), *sparse])
        self._blends = keep_largest(blends, max_active)
        self._values = reward(self._blends)  # (n, V)

    def value(self, mix: FloatArray) -> float:
        """Reward of the best blend for a task mix."""
        for radius in (0.3, 0.1, 0.03, 0.01, 0.003):
            worth = self._values @ mix
            best = self._blends[np.argpartition(worth, -3)[-3:]].repeat(32, axis=0)
            towards = self._rng.dirichlet(np.full(best.shape[1], 0.15), size=len(best))
            reach = radius * self._rng.uniform(-0.5, 1.0, (len(best), 1))  # below 0: away from an expert
            moved = np.maximum((1 - reach) * best + reach * towards, 0.0)
            moved = keep_largest(moved / moved.sum(axis=1, keepdims=True), self._most)
            values = self._reward(moved)
            kept = np.argsort(values @ mix)[-4:]
            self._blends = np.concatenate([self._blends, moved[kept]])
            self._values = np.concatenate([self._values, values[kept]])
        return float((self._values @ mix).max())
