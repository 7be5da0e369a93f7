"""The dense model that a plan of pieces fills: its configuration, its tensors, and what changes with the blend."""

import math
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from transformers import AutoConfig

from tanbr.errors import CheckpointError
from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.families import carried_over
from tanbr.moe.family import OUTPUT_ROLES, Family, Piece, Settings, Site


class DensePlan:
    """What `dense`, `merge_into` and `export` work from."""

    def __init__(self, family: Family, settings: Settings, sites: list[Site], pieces: list[Piece]) -> None:
        self.family = family
        self.settings = settings
        self.sites = sites
        self.pieces = pieces
        self.blended = [piece for piece in pieces if piece.weights is None]  # what changes with the blend
        self.shapes, self.width = family.shapes(pieces)

    def targets(self, *, changing: bool = False) -> dict[str, list[Piece]]:
        """List the dense tensors, or those that change with the blend, with the pieces that fill them."""
        grouped: dict[str, list[Piece]] = {}
        for piece in self.blended if changing else self.pieces:
            grouped.setdefault(piece.target, []).append(piece)
        return grouped

    @cached_property
    def padded(self) -> frozenset[str]:
        """Dense tensors that the pieces do not fill up: the rest of them is 0."""
        covered: dict[str, int] = {}
        for piece in self.pieces:
            covered[piece.target] = covered.get(piece.target, 0) + math.prod(piece.shape)
        return frozenset(name for name, shape in self.shapes.items() if covered[name] < math.prod(shape))

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
        named = self.settings.get("architectures")
        if not (isinstance(named, list) and len(named) == 1 and str(named[0]).startswith(before)):
            raise CheckpointError(f"config.json must name one {before}… class in architectures (got {named})")
        return after + str(named[0]).removeprefix(before)


def concatenated(pieces: list[Piece], sites: list[Site], experts: list[int]) -> list[Piece]:
    """Change a plan from a blend to the chosen experts side by side, each with 1/k of the output."""
    share = 1 / len(experts)
    parts = {part.target: part for site in sites for part in site.parts}
    result: list[Piece] = []
    for piece in pieces:
        part = parts.get(piece.target)
        if part is None or piece.weights is not None:
            shift = 0 if part is None or part.unit_axis is None else (len(experts) - 1) * part.shape[part.unit_axis]
            result.append(replace(piece, start=piece.start + shift))
        elif part.unit_axis is None:
            weights = tuple(share if k in experts else 0.0 for k in range(len(piece.blocks)))
            result.append(replace(piece, weights=weights))
        else:
            scale = piece.scale * (share if part.role in OUTPUT_ROLES else 1.0)
            width = part.shape[part.unit_axis]
            result += [
                replace(
                    piece, blocks=(piece.blocks[k],), weights=(1.0,), scale=scale, axis=part.unit_axis, start=i * width
                )
                for i, k in enumerate(experts)
            ]
    return result
