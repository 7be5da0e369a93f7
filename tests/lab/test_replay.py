"""Estimates from the chances that were written down: each finds the true gain, where nothing drifts."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from loop.test_holdback import simulated
from tanbr.lab.replay import doubly_robust, self_normalised
from tanbr.loop.holdback import Toss

Estimate = Callable[[Sequence[Toss]], tuple[float, float]]


@pytest.mark.parametrize("estimate", [self_normalised, doubly_robust])
def test_an_estimate_is_unbiased_and_its_interval_mostly_holds_the_truth(estimate: Estimate) -> None:
    runs = [(estimate(tosses), true) for tosses, true in (simulated(seed, 300, drift=0.0) for seed in range(200))]
    misses = np.array([gain - true for (gain, _), true in runs])
    assert abs(misses.mean()) < 3 * misses.std() / np.sqrt(len(misses))
    assert np.mean([abs(gain - true) <= error for (gain, error), true in runs]) >= 0.9
