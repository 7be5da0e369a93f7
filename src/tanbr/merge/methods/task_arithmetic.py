"""Task arithmetic: the experts' differences from a base, added up and scaled.

    W(x) = W₀ + λ Σ_k x_k (W_k − W₀)

Ilharco et al., Editing Models with Task Arithmetic, ICLR 2023. λ = 1 is the average whatever the base; above it a blend
goes further than its experts did, away from the base. Their λ multiplies a sum over tasks, ours a mean by the blend.
"""

from torch import Tensor

from tanbr.merge.methods.method import Scale, merge_method


@merge_method("task-arithmetic")
def task_arithmetic(rows: Tensor, weights: Tensor, base: Tensor, *, scale: Scale = 1.5) -> Tensor:
    """Differences from a base, scaled; with the experts' mean as base the even blend is the average."""
    return base + scale * (weights[:, 0] @ rows - base)
