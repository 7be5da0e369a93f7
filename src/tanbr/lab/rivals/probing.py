"""Probe and assign: serve every expert alone until each task's best is known, then blend in proportion to the mix.

What anybody would write first without a card. It needs no practice, and its probes are paid for by users.
"""

# ruff: noqa: ARG002 - a policy is handed more than each rule needs

from dataclasses import dataclass

import numpy as np

from tanbr.router.shell import AskTell, Question, lone_root
from tanbr.router.simplex import Sizes
from tanbr.types import Blend, Counts, Decision, FloatArray, Reward, Terms, TreeView

ENOUGH = 16  # rewards of a task at each expert, before one is assigned
SHARE = 0.25  # of a task in the mix, from which it is worth serving all requests by one expert to probe for it


@dataclass(frozen=True, eq=False)
class Probed:
    """What each expert alone has earned so far."""

    sums: FloatArray  # (K, V)
    counts: FloatArray  # (K, V)


@dataclass(frozen=True)
class _Policy:
    sizes: Sizes
    panels = False

    def start(self, rng: np.random.Generator) -> Probed:
        return Probed(*np.zeros((2, self.sizes.experts, self.sizes.tasks)))

    def choose(self, state: Probed, asked: Question, rng: np.random.Generator) -> Decision:
        frequent = asked.task_mix >= SHARE
        lacking = np.maximum(ENOUGH - state.counts, 0.0) @ frequent  # (K,)
        mean = state.sums / np.maximum(state.counts, 1.0)
        best = mean == mean.max(axis=0)  # a task that was never probed for is shared out evenly
        blend = (best / best.sum(axis=0)) @ asked.task_mix
        if lacking.any():
            blend = np.eye(self.sizes.experts)[int(lacking.argmax())]
        return asked.decided(blend, (Terms(float("nan")),))

    def learn(
        self, state: Probed, decision: Decision, rewards: FloatArray, counts: FloatArray, rng: np.random.Generator
    ) -> Probed:
        return self.warm_start(state, decision.blend, rewards[0], counts[0])

    def warm_start(self, state: Probed, blend: Blend, reward: Reward, counts: Counts) -> Probed:
        alone = (blend > 0.999).astype(np.float64)[:, None]  # (K, 1), all 0 for a blend of several
        return Probed(state.sums + alone * np.where(counts > 0, reward * counts, 0.0), state.counts + alone * counts)

    def view(self, state: Probed) -> TreeView:
        return lone_root(self.sizes.experts, self.sizes.tasks)


class ProbeAndAssign(AskTell):
    """Experts alone first, then each task to its best."""

    kind = "probing"

    def __init__(self, experts: int, tasks: int) -> None:
        sizes = Sizes.check(experts, tasks, None)
        super().__init__(_Policy(sizes), sizes, settings={})
