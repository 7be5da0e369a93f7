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

from tanbr.merge.methods.differences import Chunk, OfDifferences


@dataclass(eq=False)
class Dare(OfDifferences):
    """Drop at random and rescale, then add up."""

    name = "dare"
    density: Annotated[float, Field(gt=0, le=1)] = 0.5
    seed: Annotated[int, Field(ge=0)] = 0

    def combined(self, differences: Tensor, weights: Tensor, chunk: Chunk) -> Tensor:
        """Drop and add up."""
        draws = torch.stack([self._draws(chunk, expert, differences.shape[1]) for expert in chunk.experts])
        kept = draws < self.density
        return (weights[:, 0] / self.density) @ (differences * kept)

    def _draws(self, chunk: Chunk, expert: int, count: int) -> Tensor:
        """Draw from [0, 1) for every weight of a chunk: the same draws for the same seed, tensor and expert."""
        name = f"{self.seed}/{chunk.piece.target}/{chunk.piece.start}/{expert}/{chunk.at}"
        return torch.rand(count, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
