"""NUCB, the paper's nearest rival: neural UCB over 20 random feasible blends in every slot, no tree."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tanbr.router.algorithm1 import Belief, NeuralBandit
from tanbr.router.argmax import first_best
from tanbr.router.ask_tell import AskTell
from tanbr.router.config import PaperModeConfig
from tanbr.router.panel import Candidates, ModelByModel, Panel, chosen, panel_of
from tanbr.router.readings import Readings
from tanbr.router.records import Open, Terms, TreeView, lone_root
from tanbr.router.simplex import keep_largest
from tanbr.router.sizes import Sizes, as_size
from tanbr.types import Blend, Counts, FloatArray, Reward, TaskMix

DRAWS = 20  # candidate blends a slot, the paper's figure


class _Policy(ModelByModel):
    """Lines 6, 13 and 14 of Algorithm 1 over random candidates instead of a tree's leaves."""

    def __init__(self, sizes: Sizes, config: PaperModeConfig, rng: np.random.Generator) -> None:
        self.sizes, self.rng, self.bandit = sizes, rng, NeuralBandit(sizes, config)
        self.state: Belief = self.bandit.start(rng)

    def choose(self, mix: TaskMix, open_slots: list[Open]) -> tuple[Blend, Terms]:  # noqa: ARG002
        blends = self._draws()
        mean, width = self.bandit.bound(self.state, blends, mix)
        best = first_best(mean + width)
        return blends[best], Terms(float(mean[best]), 0.0, float(width[best]), candidates=DRAWS)

    def choose_panel(self, readings: Readings, models: int, open_slots: list[Open]) -> Panel:  # noqa: ARG002
        blends = self._draws()
        found = Candidates.of(blends, *self.bandit.task_bounds(self.state, blends))
        return panel_of(found, chosen(found, readings, models), readings)

    def _draws(self) -> FloatArray:
        blends = self.rng.dirichlet(np.ones(self.sizes.experts), size=DRAWS)
        return keep_largest(blends, self.sizes.max_active)

    def learn(self, mix: TaskMix, blend: Blend, terms: Terms, reward: Reward, counts: Counts) -> None:  # noqa: ARG002
        belief = replace(self.state, t=self.state.t + 1)
        self.state = self.bandit.learned(belief, mix, blend, reward, counts)

    def warm_start(self, blend: Blend, reward: Reward, counts: Counts) -> None:
        even = np.full(len(reward), 1.0 / len(reward))
        self.state = self.bandit.learned(self.state, even, blend, reward, counts)

    def view(self) -> TreeView:
        return lone_root(self.sizes.experts, self.sizes.tasks)

    def restore(self, state: Belief) -> None:
        self.state = state


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
        rng = np.random.default_rng(as_size(seed, "seed", least=0))
        config = PaperModeConfig.model_validate(config or {"memory": 1000})
        settings = {"seed": seed, "config": config.model_dump(mode="json")}
        super().__init__(_Policy(sizes, config, rng), rng, sizes, settings=settings)

    @classmethod
    def least_numbers(cls, settings: Mapping[str, Any]) -> int:
        """The weights of the network."""
        config = PaperModeConfig.model_validate(settings["config"])
        return config.parameters(int(settings["experts"]), int(settings["tasks"]))
