"""How the router chooses and learns."""

from typing import Literal, NamedTuple

from pydantic import Field

from tanbr.config import Section


class PaperModeConfig(Section):
    """Algorithm 1 as printed; the paper's own constants where it gives them."""

    nu: float = Field(1.0, gt=0)
    """ν₁, smoothness: how far rewards can differ inside the root region."""
    rho: float = Field(0.5, gt=0, lt=1)
    """ρ, how fast that falls with each level of the tree."""
    threshold_constant: float = Field(1.0, gt=0)
    """C of the expansion threshold τ_h(t)."""
    delta: float = Field(1.0, gt=0, le=1)
    """δ, confidence level; the paper's 1 lets the root split in slot 1."""
    ridge: float = Field(1.0, gt=0)
    """λ, regularisation of the loss and of Z."""
    width: int = Field(64, ge=2, multiple_of=2)
    """w, width of the hidden layers."""
    layers: int = Field(2, ge=2)
    """L, matrices in the network; 2 is one hidden layer."""
    learning_rate: float = Field(1e-3, gt=0)
    """η, step size of line 14."""
    steps: int = Field(10, ge=1)
    """J, gradient steps per slot."""
    loss: Literal["sum", "mean"] = "sum"
    """Whether the loss adds the slots up (as printed; diverges for large η·w·t) or averages them."""
    confidence: Literal["exact", "diagonal"] = "diagonal"
    """Z in full, or only its diagonal."""
    gamma: Literal["constant", "theory"] = "constant"
    """γ as a constant (υ), or by the printed formula, which needs ηwλ < 1."""
    exploration: float = Field(1.0, gt=0)
    """υ, exploration parameter; the value of the constant γ."""
    representative: Literal["lp", "proportional"] = "lp"
    """A leaf's point: a corner found by linear programming, or the interior point lo + s(hi − lo)."""
    memory: int = Field(100_000, ge=1)
    """Most told slots the loss runs over; older ones are forgotten."""

    def parameters(self, experts: int, tasks: int) -> int:
        """The number of weights, p = wK + wV + w²(L − 2)."""
        return self.width * (experts + tasks) + self.width**2 * (self.layers - 2)


class RewardPrior(NamedTuple):
    """What a kind of rewards is like before any was told."""

    noise: float  # variance of a reward with count 1
    variance: float  # of a task's reward between blends
    variances: tuple[float, ...]  # that a fit chooses from
    beta: float  # standard deviations in the bound, at first


PRIORS: dict[str, RewardPrior] = {  # by the baseline
    # Rewards of whole slots, which may differ by anything: the maps of `lab/studies/regret.py`, seeds from 100 on.
    "none": RewardPrior(noise=0.05**2, variance=0.08, variances=(0.08, 0.15), beta=2.0),
    # Means over requests, each right or wrong (docs/router.md, "Do no harm", seeds from 100 on). Rewards of real blends
    # differ by a tenth, so that more optimism would only pay for noise.
    "even": RewardPrior(noise=0.4**2, variance=0.01, variances=(0.01, 0.03, 0.08, 0.15), beta=0.5),
    # The same where each task's own expert is known: its baseline is a better one to stay at.
    "proportional": RewardPrior(
        noise=0.4**2, variance=0.003, variances=(0.0005, 0.002, 0.01, 0.03, 0.08, 0.15), beta=0.5
    ),
}


class DefaultModeConfig(Section):
    """The pooled Gaussian process."""

    beta: float | None = Field(None, ge=0)
    """Standard deviations in the upper confidence bound, at first; by the kind of rewards if not given (`PRIORS`)."""
    own_experts: tuple[int, ...] = ()
    """Expert that was trained for each task, for the baseline "proportional" (V numbers); none if empty."""
    task_groups: tuple[int, ...] = ()
    """The model of each task in the baseline panel, where a self-check measured which share one best."""
    baseline: Literal["none", "even", "proportional"] = "none"
    """Blend that is expected to be best until rewards say otherwise: even, or each task's own expert by its share."""
    change: float = Field(12.0, ge=0)
    """Evidence (logarithm of a Bayes factor) at which a task's rewards are taken to have changed; 0 never."""


MADE_WITH = {"own_experts", "baseline"}  # are part of what was learned: the prior
MAY_CHANGE = frozenset(f"config.default.{name}" for name in DefaultModeConfig.model_fields.keys() - MADE_WITH)
"""What a saved router goes on with as it is asked to: how to choose and learn from now on. Algorithm 1 has one set of
settings for a whole run."""


class RouterConfig(Section):
    """How `Tanbr` chooses and learns."""

    paper: PaperModeConfig = Field(default_factory=PaperModeConfig)
    """Settings of mode "paper"."""
    default: DefaultModeConfig = Field(default_factory=DefaultModeConfig)
    """Settings of mode "default"."""

    def of_requests(self, own_experts: tuple[int, ...] = (), task_groups: tuple[int, ...] = ()) -> "RouterConfig":
        """Give the settings for rewards that are means over single requests, with the requests as counts.

        The router then starts from a blend that needs no reward, and leaves it only on evidence: by the shares of the
        mix where the checkpoint says which expert was trained for each task, else the even one. What the user has set
        stays.
        """
        given = self.default
        own = given.own_experts or own_experts
        baseline = given.baseline if "baseline" in given.model_fields_set else "proportional" if own else "even"
        update: dict[str, object] = {"baseline": baseline, "own_experts": own if baseline == "proportional" else ()}
        update["task_groups"] = given.task_groups or task_groups
        return self.model_copy(update={"default": given.model_copy(update=update)})
