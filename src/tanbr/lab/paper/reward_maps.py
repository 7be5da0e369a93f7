"""Reward maps f*: blend (n, K) to the mean reward of V tasks (n, V) in [0, 1]. Each is drawn from a seed."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from tanbr.router.simplex import keep_largest
from tanbr.types import FloatArray


class RewardMap(Protocol):
    """A deterministic f*."""

    def __call__(self, blends: FloatArray) -> FloatArray:
        """Mean rewards (n, V) of blends (n, K)."""
        ...


def _squared(left: FloatArray, right: FloatArray) -> FloatArray:
    return np.asarray(((left[:, None] - right[None]) ** 2).sum(axis=2))


def bumps(experts: int, tasks: int, rng: np.random.Generator) -> RewardMap:
    """One Gaussian bump per task, each around its own blend of a few experts."""
    centre = rng.dirichlet(np.full(experts, 2.0 / experts), size=tasks)  # (V, K)
    width, height = rng.uniform(0.3, 0.6, tasks), rng.uniform(0.55, 0.85, tasks)
    return lambda blends: 0.1 + height * np.exp(-_squared(blends, centre) / (2 * width**2))


def sigmoids(experts: int, tasks: int, rng: np.random.Generator) -> RewardMap:
    """Each expert helps some tasks; pairs of experts disturb each other when both are in the blend."""
    help_ = rng.normal(0.0, 1.5, (tasks, experts))
    clash = np.triu(rng.random((experts, experts)) < 0.4, 1) * rng.exponential(2.5, (experts, experts))
    boost = np.triu(rng.random((experts, experts)) < 0.2, 1) * rng.exponential(2.5, (experts, experts))
    pairs = boost - clash

    def rewards(blends: FloatArray) -> FloatArray:
        joint = np.einsum("nk,kj,nj->n", blends, pairs, blends)
        return np.asarray(1.0 / (1.0 + np.exp(-(blends @ help_.T + joint[:, None]))))

    return rewards


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


def decoys(experts: int, tasks: int, rng: np.random.Generator) -> RewardMap:
    """Put up a broad, middling hill that lures, and a narrow, higher peak elsewhere."""
    peak = rng.dirichlet(np.full(experts, 2.0 / experts))
    lure = peak
    while np.linalg.norm(peak - lure) < 0.6:
        lure = rng.dirichlet(np.full(experts, 2.0 / experts))
    centre = 0.85 * peak + 0.15 * rng.dirichlet(np.ones(experts), size=tasks)  # (V, K)
    high, low = rng.uniform(0.75, 0.95, tasks), rng.uniform(0.45, 0.6, tasks)

    def rewards(blends: FloatArray) -> FloatArray:
        hill = low * np.exp(-_squared(blends, lure[None]) / (2 * 0.8**2))
        return np.asarray(np.maximum(hill, high * np.exp(-_squared(blends, centre) / (2 * 0.45**2))))

    return rewards


FAMILIES: dict[str, Callable[[int, int, np.random.Generator], RewardMap]] = {
    "bumps": bumps,
    "sigmoids": sigmoids,
    "merged networks": merged_networks,
    "decoys": decoys,
}


class BestBlends:
    """Best reachable ψᵀf*(x) over blends of at most B experts, by dense search and local refinement."""

    def __init__(self, reward: RewardMap, *, experts: int, max_active: int, seed: int) -> None:
        self._reward, self._most, self._rng = reward, max_active, np.random.default_rng(seed)
        sparse = [self._rng.dirichlet(np.full(experts, a), size=3000) for a in (0.1, 0.3, 1.0)]
        blends = np.concatenate([np.eye(experts), np.full((1, experts), 1 / experts), *sparse])
        self._blends = keep_largest(blends, max_active)
        self._values = reward(self._blends)  # (n, V)

    @property
    def blends(self) -> FloatArray:
        """All blends tried so far (n, K)."""
        return self._blends

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
