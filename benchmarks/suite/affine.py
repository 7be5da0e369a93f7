"""Merging by regression, biases too: a constant 1 is one more input of every linear layer, and its bias that weight."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tanbr.lab.rivals.probes import Probes, experts_alone, linears, real_tokens, watched
from tanbr.merge import Moe
from tanbr.merge.gram_matrices import SHRINKAGE, solved
from tanbr.merge.methods.regression import Regression
from tanbr.moe.family import Piece


@dataclass(eq=False)
class AffineRegression(Regression):
    """As `regression`, with matrices of inputs (u, 1), shrunk off the diagonal as those of u are."""

    name = "affine regression"
    means: ClassVar[dict[str, list[Tensor]]] = {}  # layer → mean input (in,) of each expert: what `means_of` gives

    def fill(self, out: Tensor, piece: Piece, blend: Sequence[float]) -> None:
        """Solve a layer's weight and bias together, and keep the one that the piece is."""
        layer, _, kind = piece.target.rpartition(".")
        weight, bias = (self._piece(f"{layer}.{part}") for part in ("weight", "bias"))
        sums = self._matrices.sums(weight, blend) if weight and sum(share != 0 for share in blend) > 1 else None
        if sums is None or weight is None or bias is None:
            super().fill(out, piece, blend)
            return
        rows, columns = weight.shape
        left, right = torch.zeros(columns + 1, columns + 1), torch.zeros(columns + 1, rows)
        left[:-1, :-1], right[:-1] = sums
        left[-1, -1] = 1
        for k, share in enumerate(blend):
            mean = share * SHRINKAGE * self.means[layer][k]  # (in,)
            own, own_bias = self.experts.one(weight, k).view(rows, columns).float(), self.experts.one(bias, k).float()
            left[-1, :-1] += mean
            right[:-1] += torch.outer(mean, own_bias)
            right[-1] += own @ mean + share * own_bias
        left[:-1, -1] = left[-1, :-1]
        average, average_bias = torch.empty(rows, columns), torch.empty(rows)
        self.experts.average(average, weight, blend)
        self.experts.average(average_bias, bias, blend)
        merged = solved(left, right, torch.cat([average, average_bias[:, None]], dim=1))
        out.copy_(merged[:, :-1] if kind == "weight" else merged[:, -1])

    def _piece(self, target: str) -> Piece | None:
        return next((piece for piece in self.experts.pieces if piece.target == target), None)


@torch.no_grad()
def means_of(moe: Moe, probes: Probes) -> dict[str, list[Tensor]]:
    """Measure what each linear layer sees on average (in,), expert after expert on its own rows."""
    found: dict[str, list[Tensor]] = {}
    for model, own in experts_alone(moe, probes):
        layers = linears(moe, model)
        sums: dict[str, Any] = dict.fromkeys(layers, 0)
        tokens = dict.fromkeys(layers, 0)
        for probe in own:
            with watched(layers) as passes:
                model(**probe.inputs)
            for name, (seen, _) in passes.items():
                x = seen[real_tokens(name, probe)]  # (m, in)
                sums[name], tokens[name] = sums[name] + x.sum(dim=0), tokens[name] + len(x)
        for name, total in sums.items():
            found.setdefault(name, []).append(total / tokens[name])
    return found
