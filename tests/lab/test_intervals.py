import numpy as np
import pytest

from tanbr.lab.intervals import interval


def test_an_interval_covers_the_mean_of_slots_that_hang_together() -> None:
    """A mean of an autocorrelated series lies in its interval about 95 times in 100; of one slot at a time far less."""
    hits = {1: 0, 20: 0}
    for trial in range(60):
        noise = np.random.default_rng(trial).normal(size=(2, 440))
        series = np.stack([np.convolve(row, np.ones(10) / 10, mode="valid")[:400] for row in noise])
        for block in hits:
            found = interval(list(series), block=block, seed=trial)
            hits[block] += found.low <= 0 <= found.high
    assert hits[20] >= 51  # 85%
    assert hits[1] < 40


def test_a_short_series_has_an_interval_too() -> None:
    found = interval([np.random.default_rng(0).random(20)])
    assert found.high - found.low > 0.1


def test_seeds_that_disagree_widen_the_interval_over_seeds() -> None:
    found = interval([np.full(40, 0.2), np.full(40, 0.4)])
    assert found.seeds == pytest.approx((0.2, 0.4))
    assert found.over_seeds == pytest.approx(12.706 * 0.1, rel=1e-3)  # Student's t with one degree of freedom
    assert interval([np.array([0.5, np.nan, 0.7])]).mean == pytest.approx(0.6)
