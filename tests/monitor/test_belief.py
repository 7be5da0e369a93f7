"""Posteriors follow the mix and believe the client."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tanbr.errors import InputError
from tanbr.monitor.belief import LEAST_SHARE, by_mix, possible_tasks, restricted

TASKS = ("sentiment", "three", "two", "grade")
LABELS = (("bad", "good"), ("yes", "maybe", "no"), ("yes", "no"), ())


def test_the_mix_is_the_prior() -> None:
    posteriors = np.array([[0.5, 0.5], [0.9, 0.1], [1.0, 0.0]])
    np.testing.assert_allclose(by_mix(posteriors, np.array([0.25, 0.75])), [[0.25, 0.75], [0.75, 0.25], [1, 0]])
    assert np.array_equal(by_mix(posteriors, np.array([0.5, 0.5])).argmax(axis=1), [0, 0, 0])


def test_a_forecast_of_0_does_not_outvote_a_text() -> None:
    sure = by_mix(np.array([[1e-6, 1 - 1e-6]]), np.array([1.0, 0.0]))
    assert sure[0, 1] > 1 - 1.1e-6 / LEAST_SHARE


@pytest.mark.parametrize(
    ("said", "possible"),
    [
        ({}, [1, 1, 1, 1]),
        ({"task": "two"}, [0, 0, 1, 0]),
        ({"labels": ("good", "bad")}, [1, 0, 0, 0]),
        ({"labels": ("yes", "no")}, [0, 1, 1, 0]),
        ({"labels": ("yes", "maybe", "no")}, [0, 1, 0, 0]),
        ({"labels": ("good", "maybe")}, [1, 1, 0, 0]),  # no task has both
        ({"labels": ("never heard of",)}, [1, 1, 1, 1]),
        ({"labels": ()}, [1, 1, 1, 1]),
    ],
)
def test_the_client_is_believed(said: dict[str, object], possible: list[int]) -> None:
    assert possible_tasks(TASKS, LABELS, **said).tolist() == [bool(p) for p in possible]  # type: ignore[arg-type]


def test_a_task_nobody_knows_is_refused() -> None:
    with pytest.raises(InputError, match="unknown task 'nonsense'; this monitor knows sentiment"):
        possible_tasks(TASKS, LABELS, task="nonsense")


def test_restricted_posteriors() -> None:
    posteriors = np.array([[0.2, 0.2, 0.6], [0.0, 0.0, 1.0]])
    possible = np.array([True, True, False])
    assert np.array_equal(restricted(posteriors, possible), [[0.5, 0.5, 0], [0.5, 0.5, 0]])
    each = np.array([[True, True, True], [False, True, False]])
    np.testing.assert_allclose(restricted(posteriors, each), [[0.2, 0.2, 0.6], [0, 1, 0]], rtol=1e-15)


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3).filter(sum), min_size=1, max_size=5))
def test_rows_stay_on_the_simplex(rows: list[list[float]]) -> None:
    posteriors = np.array(rows) / np.sum(rows, axis=1, keepdims=True)
    for result in (
        by_mix(posteriors, np.array([0.0, 0.3, 0.7])), restricted(posteriors, np.array([True, False, True])),
    ):  # fmt: skip
        assert (result >= 0).all()
        np.testing.assert_allclose(result.sum(axis=1), 1, rtol=4 * 2.0**-52)
