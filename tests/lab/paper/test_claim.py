import math

import pytest

from tanbr.lab.intervals import Spread
from tanbr.lab.paper import claim
from tanbr.lab.paper.claim import Claim


@pytest.mark.parametrize(
    ("difference", "verdict"),
    [(Spread(2.0, 1.0), "reproduced"), (Spread(0.5, 1.0), "partly"), (Spread(-2.0, 1.0), "not")],
)
def test_above_asks_for_more_than_the_interval(difference: Spread, verdict: str) -> None:
    assert claim.above(difference).verdict == verdict


def test_a_single_seed_reproduces_no_difference() -> None:
    one = Spread.of([3.0])
    assert one.half == math.inf
    assert claim.above(one).verdict == "partly"
    assert one.words() == "+3.0"


def test_the_interval_is_students() -> None:
    spread = Spread.of([1.0, 3.0])  # deviation √2, error 1, and 12.706 for one degree of freedom
    assert spread.mean == 2.0
    assert spread.half == pytest.approx(12.7062, abs=1e-4)


@pytest.mark.parametrize(
    ("ours", "verdict"), [(0.5, "reproduced"), (0.42, "reproduced"), (0.2, "partly"), (-0.1, "not")]
)
def test_a_reduction_is_compared_with_nine_tenths_of_the_papers(ours: float, verdict: str) -> None:
    assert claim.reduction(ours, 0.45).verdict == verdict


@pytest.mark.parametrize(("ours", "verdict"), [(0.23, "reproduced"), (0.30, "partly"), (0.40, "not")])
def test_about_looks_both_ways(ours: float, verdict: str) -> None:
    assert claim.about(ours, 0.22).verdict == verdict


@pytest.mark.parametrize(("ours", "verdict"), [(0.4, "reproduced"), (0.8, "partly"), (0.9, "not")])
def test_below_a_limit(ours: float, verdict: str) -> None:
    assert claim.below(ours, 0.4).verdict == verdict


@pytest.mark.parametrize(
    ("found", "verdict"), [((True, True), "reproduced"), ((True, False), "partly"), ((False, False), "not")]
)
def test_checks_say_what_they_check(found: tuple[bool, bool], verdict: str) -> None:
    judged = claim.checks({"a is so": found[0], "b is so": found[1]})
    assert judged.verdict == verdict
    assert "a is so; b is so" in judged.rule


def test_a_claim_carries_its_rule() -> None:
    told = Claim("it rains", "often", "never", claim.untested(), "no roof", (0, 1)).to_json()
    assert told["verdict"] == "cannot be tested here"
    assert told["seeds"] == [0, 1]
    assert told["rule"]
