"""What methods share that work on the experts' differences from a common base, and not on the experts themselves.

    W(x) = W₀ + scale · combined(W_k − W₀, x_k)

W₀ is the ancestor's weight where the source of the experts knows it, and the mean of all K experts elsewhere.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from tanbr.merge.methods.method import Method, active, fill_by_chunks
from tanbr.moe.family import Piece

Scale = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(eq=False)
class OfDifferences(Method):
    """A method that combines differences, weight by weight."""

    scale: Scale = 1.0

    @abstractmethod
    def combined(self, differences: Tensor, weights: Tensor, piece: Piece, chosen: list[int], at: int) -> Tensor:
        """Combine the differences (r, n) of the chosen experts, from element `at` on, with weights (r, 1): (n,)."""

    def fill(self, out: Tensor, piece: Piece, blend: Sequence[float]) -> None:
        """Merge chunk by chunk."""
        chosen, weights = active(blend)

        def merged(part: slice) -> Tensor:
            base, differences = self.differences(piece, chosen, part)
            return base + self.scale * self.combined(differences, weights.to(base), piece, chosen, part.start)

        fill_by_chunks(out, merged)

    def differences(self, piece: Piece, chosen: list[int], part: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Read a part of the base (n,), and how the chosen experts differ from it (r, n)."""
        origin = self.experts.ancestor(piece)
        if origin is None:
            rows = self.experts.rows(piece, range(self.experts.count), part).mul_(piece.scale)
            base = rows.mean(dim=0)
            rows = rows if len(chosen) == len(rows) else rows[chosen]
        else:
            rows = self.experts.rows(piece, chosen, part).mul_(piece.scale)
            base = origin[part].to(rows.dtype)
        return base, rows.sub_(base)
