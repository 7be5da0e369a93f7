"""One run of a router against a reward map, with what a deployment adds: noise, unseen tasks, late rewards."""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from suite.maps import MAPS
from tanbr.lab.paper.reward_maps import BestBlends, RewardMap
from tanbr.types import Decision, FloatArray, Router

MixKind = Literal["fixed", "switching", "sinusoidal"]
MIXES: tuple[MixKind, ...] = ("fixed", "switching", "sinusoidal")
PERIOD = 200  # slots until a moving mix returns


@dataclass(frozen=True)
class Scenario:
    """What a run is made of; two runs of equal scenario see the same map, mixes and noise."""

    family: str
    mix: MixKind
    seed: int
    experts: int = 8
    tasks: int = 8
    max_active: int | None = None
    slots: int = 1000
    noise: float = 0.05
    unseen: float = 0.0  # chance that a task is not seen in a slot
    delay: int = 0  # slots until a reward arrives
    moves_at: int | None = None  # slot at which the map is replaced by another of its family


@dataclass(eq=False)
class Trace:
    """What happened."""

    regret: FloatArray  # (T,)
    reward: FloatArray  # (T,) without noise
    best: FloatArray  # (T,)
    extra: dict[str, float] = field(default_factory=dict)

    def slots_to(self, share: float = 0.95, window: int = 20) -> int:
        """First slot from which `window` slots reach `share` of the best on average; T when never."""
        reached = np.convolve(self.reward / self.best, np.full(window, 1 / window), mode="valid") >= share
        return int(reached.argmax()) if reached.any() else len(self.reward)


def task_mixes(kind: MixKind, *, tasks: int, slots: int, rng: np.random.Generator) -> FloatArray:
    """Task mixes over time: (T, V)."""
    if kind == "fixed":
        return np.repeat(rng.dirichlet(np.ones(tasks))[None], slots, axis=0)
    if kind == "switching":
        return rng.dirichlet(np.full(tasks, 0.5), size=4)[(np.arange(slots) // (PERIOD // 4)) % 4]
    phase = rng.uniform(0, 2 * np.pi, tasks)
    wave = 1.0 + 0.95 * np.sin(2 * np.pi * (np.arange(slots)[:, None] % PERIOD) / PERIOD + phase)
    return np.asarray(wave / wave.sum(axis=1, keepdims=True))


def _searched(search: BestBlends, mix: FloatArray) -> float:
    """Search on from what was found until a round adds nothing: with many experts one round is far from enough."""
    best, found = -1.0, search.value(mix)
    while found > best + 1e-4:
        best, found = found, max(search.value(mix) for _ in range(4))
    return found


class World:
    """A scenario's maps, mixes and best rewards; built once, run by many routers."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = s = scenario
        key = [s.seed, list(MAPS).index(s.family), MIXES.index(s.mix), s.experts]
        rng = np.random.default_rng(key)
        self.maps: list[RewardMap] = [MAPS[s.family](s.experts, s.tasks, rng) for _ in range(2)]
        self.mixes = task_mixes(s.mix, tasks=s.tasks, slots=s.slots, rng=rng)
        self.when = np.zeros(s.slots, dtype=np.int64)  # which map holds in each slot
        if s.moves_at is not None:
            self.when[s.moves_at :] = 1
        self.best = np.zeros(s.slots)
        for which in np.unique(self.when):
            search = BestBlends(self.maps[which], experts=s.experts, max_active=s.max_active or s.experts, seed=s.seed)
            rows = np.flatnonzero(self.when == which)
            distinct, place = np.unique(self.mixes[rows], axis=0, return_inverse=True)
            self.best[rows] = np.array([_searched(search, mix) for mix in distinct])[place]
        self.noise_seed = int(rng.integers(2**31))

    def run(self, router: Router) -> Trace:
        """Play every slot."""
        s, rng = self.scenario, np.random.default_rng(self.noise_seed)
        reward = np.zeros(s.slots)
        late: deque[tuple[Decision, FloatArray]] = deque()
        for t in range(s.slots):
            decision = router.ask(self.mixes[t])
            mean = self.maps[self.when[t]](decision.blend[None])[0]
            reward[t] = self.mixes[t] @ mean
            seen = np.clip(mean + s.noise * rng.normal(size=s.tasks), 0.0, 1.0)
            seen[rng.random(s.tasks) < s.unseen] = np.nan
            late.append((decision, seen))
            if len(late) > s.delay:
                router.tell(*late.popleft())
        return Trace(self.best - reward, reward, self.best)
