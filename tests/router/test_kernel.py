import numpy as np
from sklearn.gaussian_process.kernels import Matern
from tanbr.router.kernel import correlation, rise, squared_distance


def test_the_correlation_is_scikit_learns_matern():
    rng = np.random.default_rng(0)
    left, right = rng.dirichlet(np.ones(6), 9), rng.dirichlet(np.ones(6), 7)
    expected = Matern(length_scale=0.4, nu=2.5)(left, right)
    # a squared distance by ‖x‖² + ‖y‖² − 2xᵀy is off by some 2⁻⁵², so a distance near 0 by its root
    np.testing.assert_allclose(correlation(left, right, 0.4), expected, rtol=0, atol=1e-12)
    assert (correlation(left, left, 0.4).diagonal() > 1 - 1e-12).all()
    assert (squared_distance(left, left) >= 0).all()


def test_most_of_what_an_expert_adds_is_there_at_a_small_weight():
    assert rise(0.0) == 0.0
    assert rise(1.0) == 1.0
    assert 0.6 < rise(0.3) < 0.7
