"""DARE: of every difference most weights are dropped at random, and the others grow to make up for it.

    W(x) = W₀ + λ Σ_k x_k · m_k (W_k − W₀) / p        m_k ∈ {0, 1}, 1 with chance p

Yu et al., Language Models are Super Mario: Absorbing Abilities from Homologous Models as a Free Lunch, ICML 2024. What
is dropped depends on `seed`, tensor and expert, never on the blend: near blends stay near each other.
"""

import zlib
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from tanbr.merge.methods.differences import OfDifferences
from tanbr.moe.family import Piece


@dataclass(eq=False)
class Dare(OfDifferences):
    """Drop at random and rescale, then add up."""

    name = "dare"
    density: Annotated[float, Field(gt=0, le=1)] = 0.5
    seed: Annotated[int, Field(ge=0)] = 0

    def combined(self, differences: Tensor, weights: Tensor, piece: Piece, chosen: list[int], at: int) -> Tensor:
        """Drop by draws from [0, 1) that seed, tensor and expert fix, and add up."""
        seeds = [zlib.crc32(f"{self.seed}/{piece.target}/{piece.start}/{expert}/{at}".encode()) for expert in chosen]
        count = differences.shape[1]
        draws = torch.stack([torch.rand(count, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
        return (weights[:, 0] / self.density) @ (differences * (draws < self.density))
