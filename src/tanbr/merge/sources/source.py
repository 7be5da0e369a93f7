"""What an expert source is: a dense model in pieces, of which some have K experts, all of them in mapped files.

A source says which tensors the dense model has, which of them change with a blend, and where each expert's share of
them lies. It reads headers, not weights: what an expert holds is looked at when a merge asks for it, piece by piece.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tanbr.errors import CheckpointError
from tanbr.merge.methods import Experts
from tanbr.moe.checkpoint import Checkpoint, understood
from tanbr.moe.families import family_of, read_settings
from tanbr.moe.family import Family, Piece, Settings, Site

ROWS = 256  # of a matrix, that tell whether it descends from another


class ExpertSource(ABC):
    """The K experts of a model; a new source sets these and says how it is tested."""

    checkpoint: Checkpoint  # all files that a merge reads, as one
    family: Family  # what becomes of the tensors' names and of the configuration
    config: Settings  # of the model that the experts are
    sites: list[Site]  # what `inspect` reports on
    pieces: list[Piece]  # of the whole dense model
    count: int  # K
    companions: Sequence[Path]  # folders with a tokenizer and the like; a later one wins
    expert_tasks: tuple[str, ...] = ()  # (K,) what each was trained for, where that is known beside a card
    expert_labels: tuple[tuple[str, ...], ...] = ()  # (K,) what each one's own head answers
    weights: tuple[float, ...] = ()  # (K,) the blend that a list of experts asks for

    def experts(self, blended: Sequence[Piece], fingerprint: Callable[[], str]) -> Experts:
        """Give what merge methods may read of the experts."""
        return Experts(self.checkpoint, blended, self.count, fingerprint)

    @property
    def names(self) -> list[str]:
        """What to call the experts (K,)."""
        return [str(k) for k in range(self.count)]

    def kinship(self) -> list[float] | None:
        """Cosine (K,) of each expert's matrices with the ancestor's, by their first rows; None if it is not known."""
        blended = [piece for piece in self.pieces if piece.weights is None and len(piece.shape) > 1]
        experts = self.experts(blended, str)
        cosines: list[Tensor] = []
        for piece in blended:
            ancestor = experts.ancestor(piece)
            if ancestor is not None:
                width = math.prod(piece.shape[1:])
                part = slice(0, min(ROWS, piece.shape[0]) * width)
                rows = experts.rows(piece, range(self.count), part).view(self.count, -1, width)
                origin = ancestor[part].to(rows.dtype).view(-1, width)
                cosines.append(torch.cosine_similarity(rows, origin, dim=2).mean(dim=1))  # (K,)
        return torch.stack(cosines).mean(dim=0).tolist() if cosines else None

    @abstractmethod
    def identical(self) -> "ExpertSource | None":
        """The same source with every expert like the first, for the certificate; None if a twin model shows more."""

    def describe(self) -> dict[str, Any]:
        """Say in a certificate what the experts are."""
        return {
            "family": self.family.model_type,
            "class": self.config["architectures"][0],
            "experts": self.count,
            "sha256": self.checkpoint.digests(),
        }


class MoeCheckpoint(ExpertSource):
    """Experts that lie side by side in one MoE checkpoint; its family knows where."""

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
