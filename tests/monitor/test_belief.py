"""Posteriors follow the mix and believe the client."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tanbr.monitor.belief import LEAST_SHARE, by_mix


def test_the_mix_is_the_prior() -> None:
    posteriors = np.array([[0.5, 0.5], [0.9, 0.1], [1.0, 0.0]])
    np.testing.assert_allclose(by_mix(posteriors, np.array([0.25, 0.75])), [[0.25, 0.75], [0.75, 0.25], [1, 0]])
    assert by_mix(posteriors[0], np.array([0.25, 0.75])) == pytest.approx([0.25, 0.75])  # one request


def test_a_forecast_of_0_does_not_outvote_a_text() -> None:
    sure = by_mix(np.array([[1e-6, 1 - 1e-6]]), np.array([1.0, 0.0]))
    assert sure[0, 1] > 1 - 1.1e-6 / LEAST_SHARE


def test_only_the_tasks_that_a_client_names_are_possible() -> None:
    mix, named = np.array([0.2, 0.6, 0.2]), np.array([1.0, 1.0, 0.0])
    posteriors = np.array([[0.2, 0.2, 0.6], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(by_mix(posteriors, mix, among=named), [[0.25, 0.75, 0]] * 2, rtol=1e-15)


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3).filter(sum), min_size=1, max_size=5))
def test_rows_stay_on_the_simplex(rows: list[list[float]]) -> None:
    posteriors = np.array(rows) / np.sum(rows, axis=1, keepdims=True)
    for among in (None, np.array([1.0, 0.0, 1.0])):
        result = by_mix(posteriors, np.array([0.0, 0.3, 0.7]), among=among)
        assert (result >= 0).all()
        np.testing.assert_allclose(result.sum(axis=1), 1, rtol=4 * 2.0**-52)
