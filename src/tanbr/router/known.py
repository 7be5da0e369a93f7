"""What the default router knows, as one frozen value with every array's shape, and what never changes beside it."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from tanbr.errors import InputError
from tanbr.router import gp
from tanbr.router.config import PRIORS, DefaultModeConfig
from tanbr.router.gp import Posterior, Prior
from tanbr.router.simplex import Sizes, keep_largest
from tanbr.router.watch import Watch
from tanbr.types import FloatArray, lock

FIXED = 600  # fixed candidate blends: 400 more were no better (docs/router.md)
LIFT = 0.4  # how much more a task is expected to earn from its own expert alone than without it; fits correct it
BETA_FLOOR = 0.5  # deviations in the bound in the end: with less, runs stayed on the wrong hill
DOUBT = 0.5  # deviations of its difference from the start blend that are taken off a practised blend: one that won on
# the log by luck is served less often (docs/router.md)
BETA_HALF = 200.0  # told slots in which the way to the floor is halved


@dataclass(frozen=True, eq=False)
class Known:
    """Everything that changes in the default router."""

    slots: int  # told, and warm starts
    told: float  # the same, as far as they are remembered
    posterior: Posterior  # at the fixed blends
    watch: Watch
    own: FloatArray  # (V, K) how likely each expert is to be a task's own, as told or found by practice; 0 if unknown
    practised: int  # blends whose rewards came from practice

    def __post_init__(self) -> None:
        lock(self)


@dataclass(frozen=True, eq=False)
class Rules:
    """What never changes: sizes, settings, and the prior they make."""

    sizes: Sizes
    config: DefaultModeConfig
    prior: Prior
    optimism: float | None = None  # deviations in the bound, where that is not for `beta` to say

    @classmethod
    def of(cls, sizes: Sizes, config: DefaultModeConfig) -> Self:
        """Make the prior that the settings speak of, or refuse settings that do not go with these sizes."""
        own, rewards = config.own_experts, PRIORS[config.baseline]
        if bool(own) != (config.baseline == "proportional"):
            raise InputError(
                'baseline "proportional" needs own_experts, the expert of each task, and no other baseline takes them '
                f"(got {config.baseline!r} and {own})"
            )
        if own and not (len(own) == sizes.tasks and all(0 <= expert < sizes.experts for expert in own)):
            raise InputError(
                f"own_experts must name one of {sizes.experts} experts for each of {sizes.tasks} tasks (got {own})"
            )
        likely = np.eye(sizes.experts)[list(own)] if own else np.full((sizes.tasks, sizes.experts), 1.0 / sizes.experts)
        prior = Prior(
            tasks=sizes.tasks, noise=rewards.noise, variance=rewards.variance, variances=rewards.variances, lift=LIFT,
            own=None if config.baseline == "none" else likely,
        )  # fmt: skip
        return cls(sizes, config, prior)

    def by(self, known: Known) -> Self:
        """Give the rules that hold once something was practised: by the experts it found, and with doubt.

        What is unsure is tried in practice then, not on users.
        """
        if not known.practised:
            return self
        rules = replace(self, optimism=-DOUBT)
        if not known.own.any():
            return rules
        own, config = tuple(known.own.argmax(axis=1).tolist()), self.config
        if own != config.own_experts:  # nobody measured which of these tasks share a model best
            config = config.model_copy(update={"own_experts": own, "task_groups": ()})
        variances = PRIORS["proportional"].variances
        return replace(rules, config=config, prior=replace(self.prior, own=known.own, variances=variances))

    def beta(self, known: Known) -> float:
        """Standard deviations in the bound: fewer as slots are told."""
        if self.optimism is not None:
            return self.optimism
        first = PRIORS[self.config.baseline].beta if self.config.beta is None else self.config.beta
        return float(BETA_FLOOR + (first - BETA_FLOOR) * 0.5 ** (known.told / BETA_HALF))

    def start(self, rng: np.random.Generator) -> Known:
        """Know nothing yet."""
        told, V = list(self.config.own_experts), self.sizes.tasks
        return Known(
            slots=0, told=0.0,
            posterior=gp.start(self.prior, fixed_blends(self.sizes, FIXED, rng)),
            watch=Watch.start(V),
            own=np.eye(self.sizes.experts)[told] if told else np.zeros((V, self.sizes.experts)), practised=0,
        )  # fmt: skip


def fixed_blends(sizes: Sizes, count: int, rng: np.random.Generator) -> FloatArray:
    """Vertices, the even blend, pair midpoints, random blends of two, three or all experts: (about count, K).

    A quarter are pairs, where experts help or clash; of the random ones a quarter blends all experts.
    """
    experts = sizes.experts
    vertices = np.eye(experts)
    pairs = rng.permutation(np.array(np.triu_indices(experts, 1)).T)[: count // 4]
    parts = [vertices, np.full((1, experts), 1.0 / experts), 0.5 * (vertices[pairs[:, 0]] + vertices[pairs[:, 1]])]
    random = np.zeros((max(count - sum(map(len, parts)), 0), experts))
    for row, blend in enumerate(random):
        active = experts if row % 4 == 3 else min(2 + row % 2, experts)
        blend[rng.choice(experts, size=active, replace=False)] = rng.dirichlet(np.ones(active))
    return keep_largest(np.concatenate([*parts, random]), sizes.max_active)
