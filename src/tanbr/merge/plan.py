"""The dense model that a plan of pieces fills: its configuration, its tensors, and what changes with the blend."""

import math
from functools import cached_property
from typing import Any

import torch
from transformers import AutoConfig

from tanbr.errors import CheckpointError
from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.families import carried_over
from tanbr.moe.family import Family, Piece, Settings, Site


class DensePlan:
    """What `dense`, `merge_into` and `export` work from."""

    def __init__(self, family: Family, settings: Settings, sites: list[Site], pieces: list[Piece]) -> None:
        self.family = family
        self.settings = settings
        self.sites = sites
        self.pieces = pieces
        self.blended = [piece for piece in pieces if piece.weights is None]
        self.shapes, self.width = family.shapes(pieces)

    @cached_property
    def padded(self) -> list[str]:
        """Dense tensors that the pieces do not fill up: the rest of them is 0."""
        covered: dict[str, int] = {}
        for piece in self.pieces:
            covered[piece.target] = covered.get(piece.target, 0) + math.prod(piece.shape)
        return [name for name, shape in self.shapes.items() if covered[name] < math.prod(shape)]

    def dtypes(self, checkpoint: Checkpoint) -> dict[str, torch.dtype]:
        """List the type of every dense tensor: that of the tensors it is made of."""
        return {piece.target: checkpoint.specs[piece.blocks[0][0]].dtype for piece in self.pieces}

    def config(self) -> Any:
        """Build the dense model's configuration, with its class in `architectures`."""
        family, source = self.family, self.settings
        changed = family.settings(source) | dict.fromkeys(family.width, self.width)
        config = AutoConfig.for_model(**carried_over(source, family.dense) | changed)
        config.architectures = [self._architecture()]
        return config

    def _architecture(self) -> str:
        before, after = self.family.prefix
        named = self.settings.get("architectures") or []
        if len(named) != 1 or not named[0].startswith(before):
            raise CheckpointError(f"config.json must name one {before}… class in architectures (got {named})")
        return after + str(named[0]).removeprefix(before)
