import numpy as np
import pytest
from tanbr.router.confidence import DiagonalConfidence, ExactConfidence, theory_gamma
from tanbr.router.network import initial_weights, unit, value_and_gradient

from tanbr.errors import ConfigError
from tanbr.router.config import PaperModeConfig

K, W, V, RIDGE = 3, 4, 2, 0.8


def gradients(count, *, layers=2):
    """Single gradients at changing weights, as a run makes them."""
    rng = np.random.default_rng(0)
    weights = initial_weights(inputs=K, width=W, outputs=V, layers=layers, rng=rng)
    for _ in range(count):
        weights = [theta + 0.3 * rng.normal(size=theta.shape) for theta in weights]
        x = unit(rng.dirichlet(np.ones(K), size=1))
        yield value_and_gradient(weights, x, rng.dirichlet(np.ones(V)))[1]


def shapes(layers=2):
    weights = initial_weights(inputs=K, width=W, outputs=V, layers=layers, rng=np.random.default_rng(0))
    return [theta.shape for theta in weights]


@pytest.mark.parametrize("layers", [2, 3])
def test_exact_form_is_the_printed_matrix_before_and_after_it_turns_primal(layers):
    Z = ExactConfidence.start(shapes(layers), ridge=RIDGE, width=W)
    matrix = RIDGE * np.eye(Z.parameters)
    for gradient in gradients(Z.parameters + 8, layers=layers):
        g = gradient.dense()[0]
        assert Z.squared_width(gradient)[0] == pytest.approx(g @ np.linalg.solve(matrix, g) / W, rel=1e-6)
        Z = Z.updated(gradient)
        matrix += np.outer(g, g) / W
        expected = np.linalg.slogdet(matrix / RIDGE)[1]
        assert Z.log_determinant == pytest.approx(expected, rel=1e-6)
    assert Z.primal.size


def test_diagonal_form_is_the_diagonal_of_the_printed_matrix():
    Z = DiagonalConfidence.start(shapes(), ridge=RIDGE, width=W)
    diagonal = np.full(sum(r * c for r, c in shapes()), RIDGE)
    for gradient in gradients(12):
        g = gradient.dense()[0]
        assert Z.squared_width(gradient)[0] == pytest.approx((g * g / diagonal).sum() / W)
        Z = Z.updated(gradient)
        diagonal += g * g / W
    assert np.allclose(np.concatenate([layer.ravel() for layer in Z.diagonal]), diagonal)
    assert Z.log_determinant == pytest.approx(np.log(diagonal / RIDGE).sum())


def test_printed_gamma_by_hand():
    config = PaperModeConfig(width=4, layers=2, ridge=1.0, learning_rate=0.1, steps=2, delta=0.5, norm_bound=2.0)
    thin = 4 ** (-1 / 6) * np.sqrt(np.log(4))
    t, logdet = 8.0, 1.5
    first = np.sqrt(1 + thin * 16 * t ** (7 / 6))
    second = np.sqrt(logdet + thin * 16 * t ** (5 / 3) - 2 * np.log(0.5)) + 2.0
    third = (1 + t * 2) * (0.6 * np.sqrt(t) + thin * 2**3.5 * t ** (5 / 3) * (1 + np.sqrt(t)))
    assert theory_gamma(8, logdet, config) == pytest.approx(first * second + third)


def test_printed_gamma_explodes_with_t():
    config = PaperModeConfig(gamma="theory")
    assert theory_gamma(1000, 10.0, config) > 1e6 * theory_gamma(0, 0.0, config)


def test_printed_gamma_is_refused_where_it_means_nothing():
    with pytest.raises(ConfigError, match=r"learning_rate of at most 0\.0156"):
        theory_gamma(1, 0.0, PaperModeConfig(learning_rate=0.1))
