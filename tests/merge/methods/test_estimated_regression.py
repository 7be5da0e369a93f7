import pytest
import torch
from torch import Tensor

import tanbr
from merge.methods.reference import BLENDS, Case, compare, weighted


def estimated(c: Case, ridge: float) -> Tensor:
    """The regression with estimated matrices, from its definition: least squares on stacked rows."""
    experts, weights = c.active
    if experts.dim() != 3 or len(experts) < 2:
        return weighted(experts, weights)
    left, right = 0, 0
    for expert, weight in zip(experts, weights, strict=True):
        rows = expert - c.base
        rows = rows - rows.mean(dim=0)
        gram = rows.T @ rows
        gram = gram / gram.diagonal().mean()
        left, right = left + weight * gram, right + weight * gram @ expert.T
    rho = ridge * left.diagonal().mean() * torch.eye(len(left), dtype=torch.float64)
    return torch.linalg.solve(left + rho, right + rho @ weighted(experts, weights).T).T


@pytest.mark.parametrize("blend", BLENDS)
def test_estimated_regression(related, blend) -> None:
    ridge = 0.1
    # solving multiplies rounding by the condition number, here at most (in + ρ) / ρ of a trace of `in`
    moe = tanbr.open(related, method=f"estimated-regression:ridge={ridge}")
    widest = max(spec.shape[-1] for spec in moe.checkpoint.specs.values())
    compare(moe, blend, lambda c: estimated(c, ridge), roundings=widest * (widest + ridge) / ridge)
