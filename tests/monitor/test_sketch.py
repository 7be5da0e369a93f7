"""Sketches never count too little, and leave one out exactly."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.monitor.sketch import CountMin, log_likelihood
from tanbr.monitor.tokens import Ragged

FLOAT32 = 2.0**-23  # rounding of a logarithm in the tables, twice over
hashes = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=60)


def ragged(*rows: list[int]) -> Ragged:
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return Ragged(np.array([value for row in rows for value in row], dtype=np.uint64), starts)


def sketch(width: int) -> CountMin:
    return CountMin(np.zeros((3, width, 2), dtype=np.int64))


def log_probability(counted: CountMin, values: list[int]) -> np.ndarray:
    """Give the log-probability of each value for each task (H, V)."""
    return log_likelihood([ragged(*([value] for value in values))], counted.log_table()[None])[0]


@settings(max_examples=50)
@given(hashes, hashes)
def test_a_count_is_never_too_low_and_totals_are_exact(one: list[int], two: list[int]) -> None:
    counted = sketch(width=16).add(ragged(one, two), np.array([0, 1]))
    asked = sorted(set(one + two))
    truth = np.array([[one.count(value), two.count(value)] for value in asked])
    least = np.log((truth + 1) / (np.array([len(one), len(two)]) + 16))
    assert (log_probability(counted, asked) >= least - FLOAT32 * np.abs(least)).all()
    assert counted.totals.tolist() == [len(one), len(two)]


@settings(max_examples=30)
@given(st.lists(st.tuples(hashes, hashes), min_size=1, max_size=4))
def test_views_read_together_are_views_read_alone(rows: list[tuple[list[int], list[int]]]) -> None:
    views = [ragged(*(row[view] for row in rows)) for view in (0, 1)]
    tables = np.random.default_rng(0).normal(size=(2, 3, 16, 2)).astype(np.float32)
    together = log_likelihood(views, tables)
    for view in (0, 1):
        assert np.array_equal(together[view], log_likelihood([views[view]], tables[[view]])[0])


@settings(max_examples=30)
@given(hashes, hashes, st.integers(1, 3))
def test_leaving_one_out_is_never_having_learned_it(one: list[int], two: list[int], times: int) -> None:
    """Exact wherever the least counter is the same one with and without the text: here, as the sketch is wide."""
    others = everything = sketch(width=1 << 14).add(ragged(two, two), np.array([0, 1]))
    for _ in range(times):
        everything = everything.add(ragged(one), np.array([0]))
    left_out = everything.leave_one_out(ragged(one), np.array([0]), np.array([times]))
    expected = log_likelihood([ragged(one)], others.log_table()[None])[0]
    # One is a sum of float32 logarithms, the other of float64: each of at most 60 terms rounds the sum so far.
    np.testing.assert_allclose(left_out[:, 0], expected[:, 0], rtol=len(one) * FLOAT32)
