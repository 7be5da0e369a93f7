import pytest
from torch import Tensor

import tanbr
from merge.methods.reference import BLENDS, Case, compare, weighted
from moe.tiny import K


@pytest.mark.parametrize("scale", [0.5, 3.0])
@pytest.mark.parametrize("blend", BLENDS)
def test_task_arithmetic(related, blend, scale) -> None:
    def reference(c: Case) -> Tensor:
        return c.base + scale * weighted(c.experts - c.base, c.blend)

    moe = tanbr.open(related, method=f"task-arithmetic:scale={scale}")
    compare(moe, blend, reference, roundings=(K + 2) * (2 * scale + 1))
