"""TIES: differences are trimmed, a sign is elected for every weight, and those that agree with it are added up.

    τ_k = W_k − W₀, of which the `density` largest (by size, in each tensor) stay and the others are 0
    s = sign Σ_k x_k τ_k        W(x) = W₀ + λ · Σ_{k: sign τ_k = s} x_k τ_k

With `normalise=true`, the paper's way and mergekit's default, the sum is divided by the weight Σ x_k of those that
agree; a blend that comes near one expert then does not come near its merge (docs/methods.md).

Yadav et al., TIES-Merging: Resolving Interference When Merging Models, NeurIPS 2023; weighted as mergekit does it.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from tanbr.merge.methods.differences import OfDifferences
from tanbr.moe.family import Piece


@dataclass(eq=False)
class Ties(OfDifferences):
    """Trim, elect a sign, add up what agrees with it."""

    name = "ties"
    density: Annotated[float, Field(gt=0, le=1)] = 0.5
    normalise: bool = False  # whether what agrees is divided by its own share of the blend

    def __post_init__(self) -> None:
        self._least: dict[tuple[str, int], Tensor] = {}  # (K, 1) the smallest difference that stays; any blend's

    def combined(self, differences: Tensor, weights: Tensor, piece: Piece, chosen: list[int], at: int) -> Tensor:  # noqa: ARG002
        """Combine what is large and agrees."""
        kept = differences * (differences.abs() >= self._thresholds(piece)[chosen])
        weighted = weights * kept
        agrees = torch.where(weighted.sum(dim=0) >= 0, kept > 0, kept < 0)
        total = (weighted * agrees).sum(dim=0)
        if not self.normalise:
            return total
        share = (weights * agrees).sum(dim=0)
        return total / torch.where(share > 0, share, 1.0)

    def _thresholds(self, piece: Piece) -> Tensor:
        key = piece.target, piece.start
        if key not in self._least:
            size = math.prod(piece.shape)
            rank = size - max(1, int(self.density * size)) + 1  # counted from the smallest
            every = list(range(self.experts.count))
            sizes = self.differences(piece, every)[1].abs_()  # (K, n), for one tensor at a time
            self._least[key] = torch.stack([sizes[expert].kthvalue(rank).values for expert in every])[:, None]
        return self._least[key]
