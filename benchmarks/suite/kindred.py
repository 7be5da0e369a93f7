"""Worlds of many experts that come in families: reward maps, partitions that are right, half right or random."""

from dataclasses import dataclass

import numpy as np

from suite.run import Trace, task_mixes
from tanbr.lab.paper.reward_maps import FAMILIES, BestBlends, RewardMap
from tanbr.router.groups import Groups
from tanbr.types import FloatArray, Router

ANCESTORS, TASKS, NOISE = 8, 8, 0.05


@dataclass(frozen=True)
class Kindred:
    """What a world is made of; equal ones see the same map, mixes and noise."""

    map: str
    experts: int
    inside: float  # how much experts of a family differ: 0 not at all, 1 as much as families do
    seed: int
    slots: int = 400


class KindredWorld:
    """Experts are mixtures of eight ancestors, mostly one, and some are worse than others of their family.

    With positions p (K, 8) = (1 − inside)·own family + inside·Dirichlet(½) and faults d (K,) from 0 to ½, a blend x
    earns f(x p)·(1 − inside·x d), f one of the maps of the regret study over eight experts.
    """

    def __init__(self, what: Kindred) -> None:
        self.what = what
        rng = np.random.default_rng([what.seed, list(FAMILIES).index(what.map), what.experts, int(100 * what.inside)])
        base = FAMILIES[what.map](ANCESTORS, TASKS, rng)
        self.family = np.arange(what.experts) % ANCESTORS  # (K,)
        own = np.eye(ANCESTORS)[self.family]
        self.position = (1 - what.inside) * own + what.inside * rng.dirichlet(np.full(ANCESTORS, 0.5), what.experts)
        self.fault = rng.uniform(0.0, 0.5, what.experts)

        def rewards(blends: FloatArray) -> FloatArray:
            worth = 1.0 - what.inside * (blends @ self.fault)
            return np.asarray(base(blends @ self.position) * worth[:, None])

        self.map: RewardMap = rewards
        self.mixes = task_mixes("switching", tasks=TASKS, slots=what.slots, rng=rng)
        self.noise_seed = int(rng.integers(2**31))
        search = BestBlends(rewards, experts=what.experts, max_active=what.experts, seed=what.seed)
        distinct, place = np.unique(self.mixes, axis=0, return_inverse=True)
        self.best = np.array([self._climbed(search, mix) for mix in distinct])[place]

    def _climbed(self, search: BestBlends, mix: FloatArray) -> float:
        """Best ψᵀf: random search, then exponentiated gradient from the best expert of each family and the even one."""
        value = search.value(mix)
        K, step = self.what.experts, 1e-4
        alone = self.map(np.eye(K)) @ mix
        starts = [np.full(K, 1.0 / K)]
        starts += [0.9 * np.eye(K)[max(np.flatnonzero(self.family == f), key=lambda k: alone[k])] + 0.1 / K
                   for f in range(ANCESTORS)]  # fmt: skip
        for x in starts:
            rate = 4.0
            for _ in range(60):
                here = float(self.map(x[None])[0] @ mix)
                moved = (1 - step) * x + step * np.eye(K)
                slope = (self.map(moved) @ mix - here) / step
                tried = x * np.exp(rate * (slope - slope.max()))
                tried /= tried.sum()
                there = float(self.map(tried[None])[0] @ mix)
                if there > here:
                    x = tried
                else:
                    rate *= 0.5
            value = max(value, float(self.map(x[None])[0] @ mix))
        return value

    def partition(self, kind: str) -> Groups:
        """Eight groups: the families, the families with half of the experts shuffled, or chance."""
        rng = np.random.default_rng([self.what.seed, 7])
        labels = self.family.copy()
        moved = {"right": 0, "half right": self.what.experts // 2, "random": self.what.experts}[kind]
        chosen = rng.permutation(self.what.experts)[:moved]
        labels[chosen] = labels[rng.permutation(chosen)]
        return Groups.by_labels(labels.tolist())

    def run(self, router: Router) -> Trace:
        """Play every slot."""
        rng = np.random.default_rng(self.noise_seed)
        reward = np.zeros(self.what.slots)
        for t, mix in enumerate(self.mixes):
            decision = router.ask(mix)
            mean = self.map(decision.blend[None])[0]
            reward[t] = mix @ mean
            router.tell(decision, np.clip(mean + NOISE * rng.normal(size=TASKS), 0.0, 1.0))
        return Trace(self.best - reward, reward, self.best)
