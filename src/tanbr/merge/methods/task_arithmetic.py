"""Task arithmetic: the experts' differences from a base, added up and scaled.

    W(x) = W₀ + λ Σ_k x_k (W_k − W₀)

Ilharco et al., Editing Models with Task Arithmetic, ICLR 2023. λ = 1 is the average whatever the base; above it a blend
goes further than its experts did, away from the base. Their λ multiplies a sum over tasks, ours a mean by the blend.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tanbr.merge.methods.differences import Scale
from tanbr.merge.methods.method import Method
from tanbr.moe.family import Piece


@dataclass(eq=False)
class TaskArithmetic(Method):
    """Differences from a base, scaled; with the experts' mean as base the even blend is the average."""

    name = "task-arithmetic"
    scale: Scale = 1.5

    def fill(self, out: Tensor, piece: Piece, blend: Sequence[float]) -> None:
        """Write the sum: it is linear in the experts, whose mean, if it is the base, takes 1 − λ of the weight."""
        origin = self.experts.ancestor(piece)
        if origin is None:
            rest = (1 - self.scale) / len(blend)
            self.experts.average(out, piece, [self.scale * weight + rest for weight in blend])
        else:
            self.experts.average(out, piece, [self.scale * weight for weight in blend])
            out.add_(origin.view(out.shape).to(out), alpha=1 - self.scale)
