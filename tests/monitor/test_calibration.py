"""The regression's posteriors are calibrated under a uniform prior, whatever the sizes of the tasks."""

import numpy as np
import pytest

from tanbr.monitor.calibration import fit

PRODUCTS = np.array([[0], [0]])


def drawn(sizes: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw inputs around −1, 0, 1 …, a task each."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return np.random.default_rng(seed).normal(labels[:, None] - 1.0, 1.0), labels


@pytest.mark.parametrize("sizes", [[400, 400], [4000, 200], [3000, 300, 1000]])
def test_posteriors_are_those_under_a_uniform_prior(sizes: list[int]) -> None:
    fitted = fit(*drawn(sizes), products=PRODUCTS, penalty=1e-4)
    asked = np.linspace(-2, 2, 9)[:, None]
    densities = np.exp(-0.5 * (asked - (np.arange(len(sizes)) - 1.0)) ** 2)
    truth = densities / densities.sum(axis=1, keepdims=True)
    # Sampling error of a logit's slope and offset from n texts is about 2/√n, of a probability a quarter of that.
    assert np.abs(fitted.posteriors(asked) - truth).max() < 4 * 2 / np.sqrt(min(sizes)) / 4 * 2


def test_one_task_alone_is_certain() -> None:
    inputs, labels = drawn([5])
    assert fit(inputs, labels, products=PRODUCTS, penalty=0.1).posteriors(inputs).tolist() == [[1.0]] * 5


def test_an_input_far_away_is_no_surer_than_the_clip() -> None:
    fitted = fit(*drawn([50, 50, 50]), products=PRODUCTS, penalty=0.01)
    assert np.array_equal(fitted.posteriors(np.array([[1e6]])), fitted.posteriors(np.array([[1e3]])))


@pytest.mark.parametrize("penalty", [0.0, 1e-3])
def test_separable_tasks_and_a_constant_input_are_fine(penalty: float) -> None:
    inputs = np.column_stack([np.repeat([-1.0, 1.0], 10), np.ones(20)])
    posteriors = fit(inputs, np.repeat([0, 1], 10), products=PRODUCTS, penalty=penalty).posteriors(inputs)
    assert (posteriors.argmax(axis=1) == np.repeat([0, 1], 10)).all()
    assert np.isfinite(posteriors).all()
