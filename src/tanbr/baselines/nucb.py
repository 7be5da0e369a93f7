"""NUCB, the paper's nearest rival: neural UCB over 20 random feasible blends in every slot, no tree."""

import numpy as np

from tanbr.router.ask_tell import AskTell
from tanbr.router.config import PaperModeConfig
from tanbr.router.network import unit, value_and_gradient
from tanbr.router.records import Terms, TreeView, lone_root
from tanbr.router.simplex import keep_largest
from tanbr.router.sizes import Sizes, as_size
from tanbr.router.tanbr import Algorithm1
from tanbr.types import Blend, Counts, Reward, TaskMix

DRAWS = 20  # candidate blends a slot, the paper's figure


class _Policy(Algorithm1):
    """Lines 6, 13 and 14 of Algorithm 1 over random candidates instead of a tree's leaves."""

    def choose(self, mix: TaskMix, open_blends: list[Blend]) -> tuple[Blend, Terms]:  # noqa: ARG002
        blends = self.rng.dirichlet(np.ones(self.tree.low.shape[1]), size=DRAWS)
        blends = keep_largest(blends, self.max_active)
        mean, gradient = value_and_gradient(self.theta, unit(blends), mix)
        width = self.gamma * np.sqrt(self.Z.squared_width(gradient))
        best = int((mean + width).argmax())
        return blends[best], Terms(float(mean[best]), 0.0, float(width[best]), candidates=DRAWS)

    def learn(self, mix: TaskMix, blend: Blend, terms: Terms, reward: Reward, counts: Counts) -> None:  # noqa: ARG002
        self.t += 1
        self._update(mix, blend, reward, counts)

    def view(self) -> TreeView:
        return lone_root(self.tree.low.shape[1], len(self.theta[-1]))


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
        super().__init__(_Policy(sizes, config=config, rng=rng), rng, sizes, settings=settings)
