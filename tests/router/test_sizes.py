import numpy as np
import pytest
from tanbr.router.sizes import MOST, Sizes

from tanbr.errors import InputError


def test_without_a_bound_all_experts_may_be_active() -> None:
    assert Sizes.check(8, np.int64(3)) == Sizes(8, 3, 8)
    assert Sizes.check(8, 3, 2) == Sizes(8, 3, 2)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ((1, 3), r"experts must be a whole number from 2 to 4096 \(got 1\)"),
        ((MOST + 1, 3), "experts must be"),
        ((8, 0), "tasks must be"),
        ((8, 2.0), r"tasks must be .* \(got 2.0\)"),
        ((8, True), "tasks must be"),
        ((8, 3, 9), "max_active must be a whole number from 1 to 8"),
    ],
)
def test_sizes_that_make_no_router_are_refused(sizes, says) -> None:
    with pytest.raises(InputError, match=says):
        Sizes.check(*sizes)
