"""The weighted average of the experts, W(x) = Σ_k x_k W_k: the paper's merge, and the fastest."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tanbr.merge.methods.method import Method
from tanbr.moe.family import Piece


@dataclass(eq=False)
class Average(Method):
    """Weighted averages."""

    name = "average"

    def fill(self, out: Tensor, piece: Piece, blend: Sequence[float]) -> None:
        """Write the average straight into `out`."""
        self.experts.average(out, piece, blend)
