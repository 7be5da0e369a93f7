"""SLERP: from one expert to another along the arc between them, so that a mean keeps the experts' length.

    W(t) = (sin((1 − t) θ) W₁ + sin(t θ) W₂) / sin θ        θ: the angle between the two, tensor by tensor

Shoemake, Animating Rotation with Quaternion Curves, SIGGRAPH 1985. It joins two. A blend of more is joined one after
another in the experts' order, each with its share of the weight so far, and depends on that order. The result is a
weighted sum of the experts, whose weights follow from their inner products.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tanbr.merge.methods.method import CHUNK, Method
from tanbr.moe.family import Piece

NEAR = 0.9995  # cosine beyond which the arc is a straight line


@dataclass(eq=False)
class Slerp(Method):
    """Along the arc between two experts; more than two one after another."""

    name = "slerp"

    def fill(self, out: Tensor, piece: Piece, blend: Sequence[float]) -> None:
        """Find the weights of the sum, and add up."""
        chosen = [expert for expert, weight in enumerate(blend) if weight]
        found = joined(self._products(piece, chosen), [blend[expert] for expert in chosen])
        weights = [0.0] * len(blend)
        for expert, weight in zip(chosen, found, strict=True):
            weights[expert] = weight
        self.experts.average(out, piece, weights)

    def _products(self, piece: Piece, chosen: Sequence[int]) -> Tensor:
        """Inner products (r, r) of the chosen experts."""
        total = torch.zeros(len(chosen), len(chosen), dtype=torch.float64)
        for at in range(0, math.prod(piece.shape), CHUNK):
            rows = self.experts.rows(piece, chosen, slice(at, at + CHUNK))
            total += (rows @ rows.T).double()
        return total


def joined(products: Tensor, blend: Sequence[float]) -> list[float]:
    """Find the weights (r,) with which vectors of these inner products (r, r) are joined along arcs, by their blend."""
    weights = torch.zeros(len(blend), dtype=torch.float64)
    weights[0] = 1.0
    so_far = blend[0]
    for number, share in enumerate(blend[1:], start=1):
        so_far += share
        t = share / so_far
        own = weights @ products @ weights
        dot = weights @ products[number]
        length = math.sqrt(max(float(own * products[number, number]), 0.0))
        cosine = max(-1.0, min(1.0, float(dot) / length)) if length > 0 else 1.0
        if abs(cosine) > NEAR:
            before, after = 1 - t, t
        else:
            angle = math.acos(cosine)
            before, after = math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)
        weights *= before
        weights[number] = after
    return [float(weight) for weight in weights]
