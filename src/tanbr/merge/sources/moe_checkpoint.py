"""Experts that lie side by side in one MoE checkpoint of a known family."""

from tanbr.errors import CheckpointError
from tanbr.merge.sources.source import ExpertSource
from tanbr.moe.checkpoint import Checkpoint, understood
from tanbr.moe.families import family_of, read_settings


class MoeCheckpoint(ExpertSource):
    """An MoE checkpoint; its family knows where the experts are."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.family = family_of(checkpoint.config)
        check_depth(checkpoint)
        self.config = read_settings(checkpoint.config)
        with understood(checkpoint):
            self.sites = self.family.sites(checkpoint, self.config)
            self.pieces = self.family.plan(checkpoint, self.config, self.sites)
        self.count = self.sites[0].experts
        self.companions = (checkpoint.path,)

    def identical(self) -> None:
        """Leave the test to a tiny twin of the family, which shows that its dense class computes the same."""


def check_depth(checkpoint: Checkpoint) -> None:
    """Refuse a configuration of more layers than there are tensors: a list of them may be all the memory there is."""
    for key, value in checkpoint.config.items():
        if "layers" in key and isinstance(value, int | float) and not value <= len(checkpoint.specs):
            raise CheckpointError(f"config.json of {checkpoint.path} says {key} {value}, more than it has tensors")
