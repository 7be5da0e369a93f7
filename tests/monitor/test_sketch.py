"""Sketches never count too little, add up, and leave one out exactly."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.monitor.ragged import Ragged
from tanbr.monitor.sketch import CountMin

hashes = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=60)


def ragged(*rows: list[int]) -> Ragged:
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return Ragged(np.array([value for row in rows for value in row], dtype=np.uint64), starts)


def sketch(width: int = 64) -> CountMin:
    return CountMin(2, rows=3, width=width)


@settings(deadline=None, max_examples=50)
@given(hashes, hashes)
def test_a_count_is_never_too_low_and_totals_are_exact(one: list[int], two: list[int]) -> None:
    counted = sketch(width=16)
    counted.add(ragged(one, two), np.array([0, 1]))
    asked = sorted(set(one + two))
    answer = counted.query(np.array(asked, dtype=np.uint64))
    truth = np.array([[one.count(value), two.count(value)] for value in asked])
    assert (answer >= truth).all()
    assert counted.totals.tolist() == [len(one), len(two)]


def test_a_wide_sketch_counts_exactly() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**63, 200, dtype=np.uint64)
    counted = sketch(width=1 << 14)
    counted.add(ragged(values.tolist() * 3), np.array([1]))
    assert counted.query(values).tolist() == [[0, 3]] * 200


@settings(deadline=None, max_examples=30)
@given(hashes, hashes)
def test_sketches_add_up(one: list[int], two: list[int]) -> None:
    left, right, whole = sketch(), sketch(), sketch()
    left.add(ragged(one), np.array([0]))
    right.add(ragged(two), np.array([1]))
    whole.add(ragged(two, one), np.array([1, 0]))
    left.merge(right)
    assert (left.counts == whole.counts).all()


@settings(deadline=None, max_examples=30)
@given(hashes, hashes, st.integers(1, 3))
def test_leaving_one_out_is_never_having_learned_it(one: list[int], two: list[int], times: int) -> None:
    """Exact wherever the least counter is the same one with and without the text: here, as the sketch is wide."""
    others, everything = sketch(width=1 << 14), sketch(width=1 << 14)
    others.add(ragged(two, two), np.array([0, 1]))
    everything.add(ragged(two, two), np.array([0, 1]))
    for _ in range(times):
        everything.add(ragged(one), np.array([0]))
    left_out = everything.leave_one_out(ragged(one), np.array([0]), np.array([times]), 0.1)
    expected = others.log_likelihood(ragged(one), others.log_table(0.1))
    np.testing.assert_allclose(left_out[:, 0], expected[:, 0], rtol=1e-5)


def test_a_text_likes_the_task_it_came_from() -> None:
    counted = sketch()
    counted.add(ragged([1, 2, 3], [7, 8, 9]), np.array([0, 1]))
    scores = counted.log_likelihood(ragged([1, 2], [8, 9], [1, 9]), counted.log_table(1.0))
    assert scores[0, 0] > scores[0, 1]
    assert scores[1, 0] < scores[1, 1]
    assert abs(scores[2, 0] - scores[2, 1]) < 1e-6
