"""NUCB, the paper's nearest rival: neural UCB over 20 random feasible blends in every slot, no tree."""

# ruff: noqa: ARG002 - a policy is handed more than each rule needs

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tanbr.router.config import PaperModeConfig
from tanbr.router.paper import Belief, bound, first_belief, learned
from tanbr.router.shell import AskTell, Question, lone_root
from tanbr.router.simplex import Sizes, first_best, keep_largest
from tanbr.types import Blend, Counts, Decision, FloatArray, Reward, Terms, TreeView

DRAWS = 20  # candidate blends a slot, the paper's figure


@dataclass(frozen=True)
class _Policy:
    """Lines 6, 13 and 14 of Algorithm 1 over random candidates instead of a tree's leaves."""

    sizes: Sizes
    config: PaperModeConfig
    panels = False

    def start(self, rng: np.random.Generator) -> Belief:
        return first_belief(self.sizes, self.config, rng)

    def choose(self, state: Belief, asked: Question, rng: np.random.Generator) -> Decision:
        blends = keep_largest(rng.dirichlet(np.ones(self.sizes.experts), size=DRAWS), self.sizes.max_active)
        mean, width = bound(state, self.config, blends, asked.task_mix)
        best = first_best(mean + width)
        return asked.decided(blends[best], (Terms(float(mean[best]), 0.0, float(width[best]), candidates=DRAWS),))

    def learn(
        self,
        state: Belief,
        decision: Decision,
        rewards: FloatArray,
        counts: FloatArray,
        rng: np.random.Generator,
    ) -> Belief:
        belief = replace(state, t=state.t + 1)
        return learned(belief, self.config, decision.task_mix, decision.blend, rewards[0], counts[0])

    def warm_start(self, state: Belief, blend: Blend, reward: Reward, counts: Counts) -> Belief:
        return learned(state, self.config, np.full(len(reward), 1.0 / len(reward)), blend, reward, counts)

    def view(self, state: Belief) -> TreeView:
        return lone_root(self.sizes.experts, self.sizes.tasks)


class Nucb(AskTell):
    """Neural UCB with the settings of mode "paper"; the last 1000 slots are trained on."""

    kind = "nucb"

    def __init__(
        self,
        experts: int,
        tasks: int,
        *,
        max_active: int | None = None,
        seed: int = 0,
        config: PaperModeConfig | None = None,
    ) -> None:
        sizes = Sizes.check(experts, tasks, max_active)
        config = PaperModeConfig.model_validate(config or {"memory": 1000})
        settings = {"seed": seed, "config": config.model_dump(mode="json")}
        super().__init__(_Policy(sizes, config), sizes, seed=seed, settings=settings)

    @classmethod
    def least_numbers(cls, settings: Mapping[str, Any]) -> int:
        """The weights of the network."""
        config = PaperModeConfig.model_validate(settings["config"])
        return config.parameters(int(settings["experts"]), int(settings["tasks"]))
