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
    settle_slots: int = Field(default=1, ge=0)
    """Slots that must end after a slot before the router is told its reward; what comes later is told apart."""


class LoopConfig(Section):
    """How slots turn, wherever they do."""

    explore: Literal["never", "careful", "always"] = "careful"
    """When the router may leave the start blend; careful while rewards come, always from the first slot."""
    patience: int = Field(default=20, ge=1)
    """Slots without rewards after which a careful server leaves off exploring and serves what is best so far."""
    hold_back: float = Field(default=0.0, ge=0, le=1)
    """Share of slots that serve the start blend, to see what learning is worth; a fifth of it once learning pays."""
    keep_versions: int = Field(default=20, ge=2)
    """Last good blends that can be rolled back to."""
    margin: float = Field(default=0.1, gt=0)
    """How far a blend's reward may fall below that of the last good ones, beyond chance, until the guard refuses it."""
    rewards: RewardConfig = Field(default_factory=RewardConfig)
    """Where rewards come from."""
