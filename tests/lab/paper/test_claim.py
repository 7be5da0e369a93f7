import math

import pytest

from tanbr.lab.intervals import Spread
from tanbr.lab.paper import claim


@pytest.mark.parametrize(
    ("judged", "verdict"),
    [
        (claim.above(Spread(2.0, 1.0)), "reproduced"),  # by more than the interval
        (claim.above(Spread(0.5, 1.0)), "partly"),
        (claim.above(Spread(-2.0, 1.0)), "not"),
        (claim.reduction(0.42, 0.45), "reproduced"),  # nine tenths of the paper's will do
        (claim.reduction(0.2, 0.45), "partly"),
        (claim.reduction(-0.1, 0.45), "not"),
        (claim.about(0.23, 0.22), "reproduced"),
        (claim.about(0.30, 0.22), "partly"),
        (claim.about(0.40, 0.22), "not"),
        (claim.below(0.4, 0.4), "reproduced"),
        (claim.below(0.8, 0.4), "partly"),
        (claim.below(0.9, 0.4), "not"),
        (claim.checks({"a": True, "b": True}), "reproduced"),
        (claim.checks({"a": True, "b": False}), "partly"),
        (claim.checks({"a": False, "b": False}), "not"),
    ],
)
def test_verdicts_follow_from_figures(judged: claim.Judgement, verdict: str) -> None:
    assert judged.verdict == verdict


def test_the_interval_is_students_and_a_single_seed_reproduces_no_difference() -> None:
    one, two = Spread.of([3.0]), Spread.of([1.0, 3.0])
    assert (one.half, one.words(), claim.above(one).verdict) == (math.inf, "+3.0", "partly")
    assert two.mean == 2.0
    assert two.half == pytest.approx(12.7062, abs=1e-4)  # deviation √2, error 1, 12.706 for one degree of freedom
