"""A small world for routers: five experts, four tasks, one best blend."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from tanbr.types import FloatArray, Router

Make: TypeAlias = Callable[..., Router]  # make(experts, tasks, *, seed, max_active), the last two left out at times
K, V = 5, 4
EVEN = np.full(V, 1 / V)


def toy_reward(blend: FloatArray, tasks: int = V) -> FloatArray:
    """Smooth, and best for every task at three parts of expert 0 and one of expert 1: (V,)."""
    target = np.zeros(len(blend))
    target[:2] = 0.75, 0.25
    return np.full(tasks, 0.1) + 0.8 * np.exp(-2.0 * ((blend - target) ** 2).sum())


def play(
    router: Router, slots: int, *, tasks: int = V, seed: int = 0, unseen: float = 0.0, noise: float = 0.02
) -> FloatArray:
    """Ask and tell for some slots with random mixes; the blends (slots, K)."""
    rng = np.random.default_rng(seed)
    blends = []
    for _ in range(slots):
        decision = router.ask(rng.dirichlet(np.ones(tasks)))
        reward = np.clip(toy_reward(decision.blend, tasks) + noise * rng.normal(size=tasks), 0, 1)
        reward[rng.random(tasks) < unseen] = np.nan
        router.tell(decision, reward)
        blends.append(decision.blend)
    return np.array(blends)


def play_panels(router: Router, slots: int, *, seed: int = 0) -> FloatArray:
    """Ask and tell panels of two and three models in turn, some tasks unseen; all blends (n, K)."""
    rng = np.random.default_rng(seed)
    blends = []
    for slot in range(slots):
        panel = router.ask(rng.dirichlet(np.ones(V)), models=2 + slot % 2)
        rewards = np.clip([toy_reward(x) + 0.02 * rng.normal(size=V) for x in panel.blends], 0, 1)
        rewards[rng.random(rewards.shape) < 0.3] = np.nan
        router.tell(panel, rewards)
        blends += list(panel.blends)
    return np.array(blends)
