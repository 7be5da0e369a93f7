"""Regression without data: what an expert saw is estimated from what it learned.

A gradient step on a linear layer is a sum of outer products (…) uᵀ with the layer's inputs u, so the rows of an
expert's difference lie in the span of its inputs, and most where those were many and strong. Their covariance stands
for the Gram matrix of `regression`:

    G_k ∝ C_kᵀ C_k        C_k: rows of W_k − W₀ (out, in) less their mean; G_k scaled to mean diagonal 1

The estimate is that of Xu et al., ACE-Merging, CVPR 2026 (arXiv 2603.02945). Theirs scales the matrices only where
experts differ much in size, adds what all have in common to each, and evens out the largest singular values of the
result; here they are always scaled, and ρ gives the average where no expert learned much. W₀ is the experts' mean.

ρ is as large as the matrices' own diagonal. An expert's matrix is next to 0 in most directions, so that with a small ρ
an expert that learned something in one has it in full, however small its weight; and since the directions of several
experts are not orthogonal, the solution overshoots all of them (docs/methods.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from tanbr.merge.gram_matrices import solved
from tanbr.merge.methods.method import Method
from tanbr.moe.family import Piece


@dataclass(eq=False)
class EstimatedRegression(Method):
    """Regression on what the experts' differences say they saw; all that is no matrix is averaged."""

    name = "estimated-regression"
    cost = "reads all experts twice; two products and one system a layer"
    ridge: Annotated[float, Field(gt=0)] = 1.0

    def fill(self, out: Tensor, piece: Piece, blend: Sequence[float]) -> None:
        """Average, then solve the layer's regression with estimated matrices; one expert alone stays itself."""
        self.experts.average(out, piece, blend)
        if len(piece.shape) != 2 or sum(weight != 0 for weight in blend) < 2:
            return
        K = self.experts.count
        mean = torch.empty(piece.shape)
        self.experts.average(mean, piece, [1 / K] * K)
        rows, columns = piece.shape
        left, right = torch.zeros(columns, columns), torch.zeros(columns, rows)
        for expert, weight in enumerate(blend):
            if weight:
                own = self.experts.one(piece, expert).view(piece.shape).float() * piece.scale
                difference = own - mean
                difference -= difference.mean(dim=0)
                size = float(difference.square().sum()) / columns  # the mean of the diagonal
                if size > 0:
                    left.addmm_(difference.T, difference, alpha=weight / size)
                    right.addmm_(difference.T, difference @ own.T, alpha=weight / size)
        if float(left.diagonal().mean()) > 0:
            out.copy_(solved(left.to(out.device), right.to(out.device), out, ridge=self.ridge))
