import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog

from tanbr.router import simplex

unit = st.floats(0.0, 1.0)
QUICK = settings(max_examples=40)


@st.composite
def boxes(draw):
    size = draw(st.integers(2, 6))
    sides = draw(arrays(np.float64, (2, size), elements=unit))
    return sides.min(axis=0), sides.max(axis=0)


@given(boxes())
@QUICK
def test_feasible_exactly_when_the_linear_program_is(box):
    low, high = box
    if min(abs(low.sum() - 1), abs(high.sum() - 1)) < 1e-6:
        return  # HiGHS works to a tolerance
    reference = linprog(np.zeros(len(low)), A_eq=np.ones((1, len(low))), b_eq=[1.0], bounds=np.c_[low, high])
    assert simplex.is_feasible(low, high) == (reference.status == 0)


@given(boxes())
@QUICK
def test_representatives_lie_in_the_box_and_sum_to_one(box):
    low, high = box
    if not simplex.is_feasible(low, high):
        return
    for point in (simplex.corner_point(low, high), simplex.proportional_point(low, high)):
        assert point.sum() == pytest.approx(1.0, abs=1e-12)
        assert (point >= low - 1e-9).all()
        assert (point <= high + 1e-9).all()


@given(boxes())
@QUICK
def test_corner_point_is_a_vertex_of_the_linear_program(box):
    low, high = box
    if simplex.is_feasible(low, high):
        point = simplex.corner_point(low, high)
        inside = (point > low + 1e-9) & (point < high - 1e-9)
        assert inside.sum() <= 1


def test_corner_point_solves_the_program_that_fills_the_first_experts_first():
    rng = np.random.default_rng(0)
    for _ in range(20):
        low = rng.random(5) * 0.15
        high = low + rng.random(5) * 0.6
        if simplex.is_feasible(low, high):
            cost = -(2.0 ** -np.arange(5))
            best = linprog(cost, A_eq=np.ones((1, 5)), b_eq=[1.0], bounds=np.c_[low, high]).x
            assert np.allclose(simplex.corner_point(low, high), best, atol=1e-7)


def test_the_papers_example_of_an_inactive_region():
    assert not simplex.is_feasible(np.array([0.5, 0.75]), np.array([1.0, 1.0]))


@given(arrays(np.float64, (3, 6), elements=st.floats(0.01, 1.0)), st.integers(1, 6))
@QUICK
def test_keep_largest_keeps_the_largest(points, count):
    points = points / points.sum(axis=1, keepdims=True)
    kept = simplex.keep_largest(points, count)
    assert np.allclose(kept.sum(axis=1), 1.0)
    assert (np.count_nonzero(kept, axis=1) <= count).all()
    for before, after in zip(points, kept, strict=True):
        assert before[after > 0].min() >= before[after == 0].max(initial=0.0)
        assert np.allclose(after[after > 0] / after.max(), before[after > 0] / before[after > 0].max())


def test_keep_largest_breaks_ties_by_order():
    assert simplex.keep_largest(np.full(4, 0.25), 2).tolist() == [0.5, 0.5, 0.0, 0.0]
