"""How the router chooses and learns."""

from typing import Any, Literal

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
    norm_bound: float = Field(1.0, gt=0)
    """S of the printed γ."""
    gamma_constants: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """C₁, C₂, C₃ of the printed γ."""
    representative: Literal["lp", "proportional"] = "lp"
    """A leaf's point: a corner found by linear programming, or the interior point lo + s(hi − lo)."""
    memory: int = Field(100_000, ge=1)
    """Most told slots the loss runs over; older ones are forgotten."""

    def parameters(self, experts: int, tasks: int) -> int:
        """The number of weights, p = wK + wV + w²(L − 2)."""
        return self.width * (experts + tasks) + self.width**2 * (self.layers - 2)


class DefaultModeConfig(Section):
    """The pooled Gaussian process with the vertex tree."""

    arms: int = Field(192, ge=8)
    """Most blends whose rewards are pooled; bounds the cost of a slot."""
    snap: float = Field(0.03, gt=0, lt=0.5)
    """A blend this near (Euclid) to a known arm is played as that arm."""
    opening: int = Field(1, ge=1)
    """Most first asks that are spent on the even blend and on single experts."""

    pool: int = Field(600, ge=16)
    """Fixed candidate blends."""
    room: int = Field(400, ge=0)
    """Candidate blends that belong to the tree; 0 turns the tree off."""
    children: int = Field(16, ge=2)
    """Most children of a node; with more experts, the most promising ones."""
    expand_below: float = Field(0.5, gt=0, lt=1)
    """A node is expanded once its variance is below this share of the prior's."""
    recent_mixes: int = Field(8, ge=1)
    """Recent task mixes for which a leaf must have fallen behind before it is recycled."""
    climbers: int = Field(3, ge=1)
    """How many of the best candidates are moved up the bound after a slot."""
    climbs: int = Field(2, ge=0)
    """Gradient steps of each."""
    climb_size: float = Field(0.1, gt=0)
    """Length of the first step (Euclid); each next is half as long."""

    beta: float = Field(2.0, ge=0)
    """Standard deviations in the upper confidence bound, at first."""
    beta_floor: float = Field(0.5, ge=0)
    """Standard deviations in the upper confidence bound, in the end."""
    beta_half: float = Field(200.0, gt=0)
    """Told slots in which the way from the one to the other is halved, if they taught enough."""
    learned_half: float = Field(25.0, gt=0)
    """The same in slots at blends nobody knew anything of; others count by the deviation that was left there."""
    open_reach: float = Field(0.5, gt=0)
    """How far, in kernel widths, a decision that is still open lowers the variance around it."""

    width: float = Field(0.5, gt=0)
    """Kernel width before the first refit: rather too narrow, which explores, than too wide, which does not."""
    widths: tuple[float, ...] = Field((0.42, 0.55, 0.7, 0.85, 1.0, 1.4, 2.0), min_length=1)
    """Kernel widths a refit chooses from."""
    variance: float = Field(0.08, gt=0)
    """Prior variance of a task's reward around the task's mean."""
    variances: tuple[float, ...] = Field((0.08, 0.15), min_length=1)
    """Prior variances a refit chooses from."""
    mean_variance: float = Field(0.04, gt=0)
    """Prior variance of a task's mean reward around 1/2."""
    noise: float = Field(0.05, gt=0)
    """Standard deviation of a reward with count 1, before it is estimated."""
    request_noise: float = Field(0.4, gt=0)
    """The same for the reward of one request, mostly right or wrong: see `RouterConfig.of_requests`."""
    correlation: float = Field(0.25, ge=0, le=1)
    """Correlation of two tasks' rewards, before it is estimated."""
    own_experts: tuple[int, ...] = ()
    """Expert that was trained for each task, where that is known (V numbers); none if empty."""
    own_lift: float = Field(0.4, ge=0, le=1)
    """How much more reward a task is expected to earn from its own expert alone than without it; fits correct it."""
    interference: tuple[tuple[float, ...], ...] = ()
    """Reward that each task loses where another's expert has the rest of the blend (V rows of V); none if empty."""
    baseline: Literal["none", "even", "proportional"] | tuple[float, ...] = "none"
    """Blend that is left only on evidence: even, every task's own expert at its share of the mix, or weights (K)."""
    budget: float = Field(0.01, ge=0, le=1)
    """Share of the baseline's reward that all exploration together may be expected to cost; 0 never leaves it."""
    doubt: float = Field(0.5, ge=0)
    """Standard deviations below what is expected that a blend is charged with before it is tried."""
    margin: float = Field(0.0, ge=0)
    """By how much a blend's bound must exceed that of the served one to replace it."""
    steps: int = Field(6, ge=0)
    """Gradient steps up the bound, from the baseline and from the served blend, at each ask with a baseline."""
    noise_fits: tuple[int, ...] = (20, 40)
    """Told slots after which noise, correlation and lift are corrected; the kernel waits for the first refit."""
    refits: tuple[int, ...] = (80, 160, 320, 640, 1280)
    """Told slots after which kernel, noise, lift and correlation are fitted; earlier fits declare the map flat."""
    change: float = Field(12.0, ge=0)
    """Evidence (logarithm of a Bayes factor) at which a task's rewards are taken to have changed; 0 never."""
    forgetting: float = Field(1.0, gt=0, le=1)
    """Share of what is known that survives a slot; below 1 for rewards that drift."""


class GroupsConfig(Section):
    """When a router over groups of experts splits one of them in two."""

    splits: int = Field(0, ge=0)
    """Most splits; 0 keeps the groups as they are."""
    settle: int = Field(60, ge=1)
    """Told slots before the first split, and from each to the next."""
    share: float = Field(0.25, gt=0, le=1)
    """Mean weight that a group must have been served with in these slots to be worth a split."""
    known: int = Field(128, ge=1)
    """Most blends whose rewards are kept to teach the router of the new groups; those with the most behind them."""


OF_REQUESTS: dict[str, Any] = {
    "variance": 0.01, "variances": (0.01, 0.03, 0.08, 0.15), "width": 0.5, "beta": 0.5, "margin": 0.003,
}  # fmt: skip
"""Rewards around a baseline; chosen by hand on tables of real blends (docs/router.md), seeds from 100 on."""
OF_KNOWN_EXPERTS: dict[str, Any] = {"variance": 0.003, "variances": (0.0005, 0.002, *OF_REQUESTS["variances"])}
"""The same where the experts' tasks are known, and the baseline is a better one to stay at."""


class RouterConfig(Section):
    """How `Tanbr` chooses and learns."""

    history: int = Field(5000, ge=0)
    """Told slots kept for `Tanbr.history` and `explain`."""
    paper: PaperModeConfig = Field(default_factory=PaperModeConfig)
    """Settings of mode "paper"."""
    default: DefaultModeConfig = Field(default_factory=DefaultModeConfig)
    """Settings of mode "default"."""
    groups: GroupsConfig = Field(default_factory=GroupsConfig)
    """Settings of a router over groups of experts."""

    def of_requests(self, own_experts: tuple[int, ...] = ()) -> "RouterConfig":
        """Give the settings for rewards that are means over single requests, with the requests as counts.

        The router then starts from a blend that needs no reward, and leaves it only on evidence: by the shares of the
        mix where the checkpoint says which expert was trained for each task, else the even one. No slot is spent on
        every expert alone, and prior and bound are those fitted to surveys of real blends. What the user has set stays.
        """
        default = self.default
        update: dict[str, Any] = {"noise": default.request_noise, **OF_REQUESTS, "baseline": "even"}
        if own_experts:
            update |= {**OF_KNOWN_EXPERTS, "own_experts": own_experts, "baseline": "proportional"}
        update = {name: value for name, value in update.items() if name not in default.model_fields_set}
        return self.model_copy(update={"default": default.model_copy(update=update)})
