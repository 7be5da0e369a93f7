import math

import pytest

from tanbr.lab.intervals import Spread
from tanbr.lab.paper.claim import above, reduced, same


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        (above(Spread(2.0, 1.0)), True),  # by more than the interval
        (above(Spread(0.5, 1.0)), False),
        (reduced(0.42, 0.45), True),  # nine tenths of the paper's will do
        (reduced(0.2, 0.45), False),
        (same(0.23, 0.22), True),
        (same(0.30, 0.22), False),
    ],
)
def test_whether_a_claim_holds_follows_from_figures(found: bool, holds: bool) -> None:
    assert found is holds


def test_the_interval_is_students_and_a_single_seed_reproduces_no_difference() -> None:
    one, two = Spread.of([3.0]), Spread.of([1.0, 3.0])
    assert (one.half, one.words(), above(one)) == (math.inf, "+3.0", False)
    assert two.mean == 2.0
    assert two.half == pytest.approx(12.7062, abs=1e-4)  # deviation √2, error 1, 12.706 for one degree of freedom
