"""How a slot turns: what is explored, what rewards count, when a blend is refused."""

from typing import Literal

from pydantic import Field

from tanbr.config import Section


class RewardConfig(Section):
    """Where rewards come from. A source's weight says what one reward of it counts; 0 turns the source off."""

    feedback: float = Field(default=1.0, ge=0)
    """Weight of a client's own reward."""
    labels: float = Field(default=1.0, ge=0)
    """Weight of a delayed true label, scored as the task scores; above 0 the answers' logits are stored."""
    shadow: float = Field(default=0.0, ge=0)
    """Weight of the agreement with the un-merged MoE."""
    confidence: float = Field(default=0.0, ge=0)
    """Weight of the model's own confidence."""
    shadow_share: float = Field(default=0.02, gt=0, le=1)
    """Share of requests that the un-merged MoE answers too, when `shadow` is on."""
    settle_slots: int = Field(default=1, ge=0)
    """Slots that must end after a slot before the router is told its reward; what comes later is told apart."""
    client_share: float = Field(default=0.2, gt=0, le=1)
    """Most that one client's feedback may count for in a slot, of all of it; or as much as the median client's."""
    doubt: float = Field(default=1.0, ge=0)
    """How fast a client whose rewards contradict those of the others loses weight; 0 believes every client."""


class GuardConfig(Section):
    """When a blend is not served, or no longer."""

    margin: float = Field(default=0.1, gt=0)
    """How far a blend's reward may fall below that of the last good one, task by task and weighted by the mix."""
    probe_share: float = Field(default=1.0, ge=0, le=1)
    """Share of the probe texts that a new blend answers before it is served; 0 only looks for NaN on one of them."""
    tries: int = Field(default=3, ge=1)
    """Choices of the router that may be probed and refused for one slot, before the old blend stays."""
    least_count: int = Field(default=20, ge=2)
    """Rewards of live requests below which the guard does not judge."""
    sigmas: float = Field(default=2.0, ge=0)
    """A fall must be this many standard errors beyond the margin to count."""
    exploration: float = Field(default=1.0, ge=0, le=1)
    """Largest share of the last 100 slots that may serve a blend nobody knows yet; 1 is no limit."""


class LoopConfig(Section):
    """How slots turn, wherever they do."""

    explore: Literal["never", "careful", "always"] = "careful"
    """When the router may leave the start blend; careful while rewards come, always from the first slot."""
    patience: int = Field(default=20, ge=1)
    """Slots without rewards after which a careful server leaves off exploring and serves the best known blend."""
    min_gain: float = Field(default=0.0, ge=0)
    """A new blend is merged only if its reward may be this much above the served one's; 0 merges every new blend."""
    keep_versions: int = Field(default=20, ge=2)
    """Last good blends that can be rolled back to."""
    rewards: RewardConfig = Field(default_factory=RewardConfig)
    """Where rewards come from."""
    guard: GuardConfig = Field(default_factory=GuardConfig)
    """When a blend is not served, or no longer."""
