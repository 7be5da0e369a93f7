"""What a state may hold."""

import numpy as np
import pytest

from tanbr.monitor.bounds import FAR, MOST, bounded


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, FAR, -FAR])
def test_measurements(odd: float) -> None:
    assert bounded(np.array([0.0, -1.0, FAR / 2]), np.zeros((0, 3)))
    assert not bounded(np.zeros(2), np.array([1.0, odd]))


def test_counts() -> None:
    assert bounded(np.array([0, MOST]))
    assert not bounded(np.array([0, MOST + 1]))
