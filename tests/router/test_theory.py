import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.errors import InputError
from tanbr.router import Tanbr, theory
from tanbr.router.config import PaperModeConfig, RouterConfig
from tanbr.router.paper import initial_weights, unit, value_and_gradient


def test_threshold_as_printed():
    assert theory.expansion_threshold(0, 1, PaperModeConfig()) == 0.0  # δ = 1: the root splits at once
    config = PaperModeConfig(threshold_constant=2.0, nu=0.5, rho=0.7, delta=0.1)
    value = theory.expansion_threshold(3, 50, config)
    assert value == pytest.approx(4 * np.log(500) / 0.25 * 0.7**-6)


@given(
    st.sampled_from([0.3, 0.5, 0.7, 0.9]),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.sampled_from([0.1, 0.5, 1.0]),
    st.integers(0, 100),
)
@settings(max_examples=8)
def test_runs_respect_the_bounds_on_depth_and_leaves(rho, constant, delta, seed):
    config = PaperModeConfig(rho=rho, threshold_constant=constant, delta=delta, width=8, steps=1)
    router, rng = Tanbr(4, 2, mode="paper", seed=seed, config=RouterConfig(paper=config)), np.random.default_rng(seed)
    for slot in range(1, 121):
        router.tell(router.ask([0.5, 0.5]), rng.random(2))
        if slot in (30, 120):
            tree = router.known.tree
            # H counts nodes that may be expanded; their children lie one deeper
            assert tree.depth.max() <= theory.depth_bound(slot, config) + 1
            assert len(tree.active_leaves) <= theory.leaves_bound(slot, config) + 1


def test_regret_bound_by_hand_and_not_sublinear():
    information = 5 * np.log(1 + 100 * 20) + 2
    bias = (1 + 100 * 2) * 0.9 ** (10 / 2) * 10
    expected = 3 * 10 * np.sqrt(information) * (np.sqrt(information - 2 * np.log(0.1)) + bias + 2) + 101
    config = PaperModeConfig(width=100, learning_rate=1e-3, steps=10, delta=0.1)
    of = {"effective_dimension": 5, "leaves": 20}
    assert theory.regret_bound(100, config, **of) == pytest.approx(expected)
    many = config.model_copy(update={"steps": 10**6})
    assert theory.regret_bound(10**6, many, **of) / 10**6 > 1  # the bare "+ T + 1"
    with pytest.raises(InputError, match="Theorem 1 needs"):
        theory.regret_bound(100, config.model_copy(update={"learning_rate": 0.1}), **of)


@pytest.mark.parametrize("layers", [2, 3])
def test_wide_networks_have_the_tangent_kernel(layers):
    rng = np.random.default_rng(0)
    x = unit(rng.dirichlet(np.ones(4), size=5))
    total, last = np.zeros((5, 5)), np.zeros((5, 5))
    for _ in range(20):
        weights = initial_weights(inputs=4, width=256, outputs=1, layers=layers, rng=rng)
        gradient = value_and_gradient(weights, x, np.ones(1))[1]
        total += gradient.dense() @ gradient.dense().T / 256 / 20
        last += gradient.front[-1] @ gradient.front[-1].T / 20
    tangent, covariance = theory.kernel_limits(x, layers=layers)
    assert np.allclose(total, tangent, rtol=0.1)
    assert np.allclose(last, covariance, rtol=0.1)
    assert np.allclose(theory.neural_tangent_kernel(x, layers=layers), (tangent + covariance) / 2)
