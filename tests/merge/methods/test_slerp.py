import math

import pytest
import torch
from torch import Tensor

import tanbr
from merge.methods.reference import Case, compare
from tanbr.merge.methods.slerp import joined


def along_the_arc(first: Tensor, second: Tensor, t: float) -> Tensor:
    """Slerp of two tensors, from its definition."""
    cosine = float((first * second).sum() / (first.norm() * second.norm()))
    if abs(cosine) > 0.9995:
        return (1 - t) * first + t * second
    angle = math.acos(cosine)
    return (math.sin((1 - t) * angle) * first + math.sin(t * angle) * second) / math.sin(angle)


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_slerp_of_pairs(related, share) -> None:
    moe = tanbr.open(related, method="slerp")
    # the angle's own rounding is that of inner products over the tensor, far below float32's
    compare(moe, [1 - share, 0, share, 0], lambda c: along_the_arc(c.experts[0], c.experts[2], share), roundings=64)


def test_slerp_of_more_joins_one_after_another(related) -> None:
    def reference(c: Case) -> Tensor:
        pair = along_the_arc(c.experts[0], c.experts[1], 0.375)
        return along_the_arc(pair, c.experts[3], 0.2)

    compare(tanbr.open(related, method="slerp"), [0.5, 0.3, 0, 0.2], reference, roundings=64)


def test_slerp_keeps_the_length_of_vectors_that_are_far_apart() -> None:
    assert joined(torch.eye(2).double(), [0.5, 0.5]) == pytest.approx([math.sqrt(0.5)] * 2)
    assert joined(torch.zeros(2, 2).double(), [0.5, 0.5]) == [0.5, 0.5]  # what has no direction is averaged
