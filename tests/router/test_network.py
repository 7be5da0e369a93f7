import numpy as np
import pytest
from tanbr.router.rewards import RewardTable

from tanbr.router import network

SIZES = [(4, 8, 3, 2), (5, 16, 2, 3), (3, 8, 1, 4)]  # K, w, V, L


def table(inputs, target, weight):
    return RewardTable(inputs, target, weight, np.arange(len(inputs)), float(len(inputs)))


def build(inputs, width, outputs, layers, *, seed=0, moved=True):
    rng = np.random.default_rng(seed)
    start = network.initial_weights(inputs=inputs, width=width, outputs=outputs, layers=layers, rng=rng)
    weights = [theta + 0.1 * rng.normal(size=theta.shape) * moved for theta in start]
    x = network.unit(rng.dirichlet(np.ones(inputs), size=6))
    return start, weights, x, rng


@pytest.mark.parametrize("sizes", SIZES)
def test_starts_at_zero_with_the_number_of_weights_the_formula_gives(sizes):
    inputs, width, outputs, layers = sizes
    start, _, x, _ = build(*sizes)
    assert np.abs(network.predict(start, x)).max() < 1e-12
    assert sum(t.size for t in start) == width * inputs + width * outputs + width**2 * (layers - 2)


@pytest.mark.parametrize("sizes", SIZES)
def test_gradient_matches_finite_differences(sizes):
    _, weights, x, rng = build(*sizes)
    mix = rng.dirichlet(np.ones(sizes[2]))
    value, gradient = network.value_and_gradient(weights, x, mix)
    assert np.allclose(value, network.predict(weights, x) @ mix)
    flat = np.concatenate([theta.ravel() for theta in weights])
    shapes = np.cumsum([theta.size for theta in weights])[:-1]

    def at(vector):
        parts = [p.reshape(t.shape) for p, t in zip(np.split(vector, shapes), weights, strict=True)]
        return network.predict(parts, x) @ mix

    numeric = np.array([(at(flat + h) - at(flat - h)) / 2e-6 for h in 1e-6 * np.eye(len(flat))]).T  # (n, p)
    assert np.allclose(gradient.dense(), numeric, atol=1e-5)
    assert np.allclose(gradient.inner(gradient), numeric @ numeric.T, atol=1e-3)


@pytest.mark.parametrize("sizes", SIZES)
def test_loss_gradient_matches_finite_differences(sizes):
    start, weights, x, rng = build(*sizes)
    data = table(x, rng.random((6, sizes[2])), rng.integers(0, 3, (6, sizes[2])).astype(float))
    options = {"ridge": 0.7, "scale": 0.3}
    _, slopes = network.loss_and_gradient(weights, start, data, **options)
    for layer, slope in enumerate(slopes):
        for place in [(0, 0), (slope.shape[0] - 1, slope.shape[1] - 1)]:
            ends = []
            for step in (1e-6, -1e-6):
                moved = [theta.copy() for theta in weights]
                moved[layer][place] += step
                ends.append(network.loss_and_gradient(moved, start, data, **options)[0])
            assert slope[place] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-5)


def test_folding_the_doubled_input_changes_nothing():
    """Train on [x, x]/√2 with block-diagonal θ_1, and on x with the folded one: the same predictions."""
    start, _, x, rng = build(4, 8, 3, 2)
    doubled = np.hstack([x, x]) / np.sqrt(2)
    zero, block = np.zeros((4, 4)), start[0][:4] * np.sqrt(2)
    wide = [np.block([[block, zero], [zero, block]]), start[1]]
    target, weight = rng.random((6, 3)), np.ones((6, 3))
    options = {"ridge": 0.0, "scale": 1.0, "rate": 1e-3, "steps": 50}
    folded, _ = network.descend(start, start, table(x, target, weight), **options)
    full, _ = network.descend(wide, wide, table(doubled, target, weight), **options)
    assert np.allclose(network.predict(folded, x), network.predict(full, doubled))
    mix = np.full(3, 1 / 3)
    one = network.value_and_gradient(folded, x, mix)[1].inner(network.value_and_gradient(folded, x, mix)[1])
    two = network.value_and_gradient(full, doubled, mix)[1].inner(network.value_and_gradient(full, doubled, mix)[1])
    assert np.allclose(one, two)


def test_descent_is_plain_gradient_descent_while_that_converges():
    start, weights, x, rng = build(4, 8, 3, 2)
    data = table(x, rng.random((6, 3)), np.ones((6, 3)))
    by_hand = weights
    for _ in range(3):
        slopes = network.loss_and_gradient(by_hand, start, data, ridge=1.0, scale=1.0)[1]
        by_hand = [theta - 1e-3 * slope for theta, slope in zip(by_hand, slopes, strict=True)]
    got, rate = network.descend(weights, start, data, ridge=1.0, scale=1.0, rate=1e-3, steps=3)
    assert rate == 1e-3
    assert all(np.array_equal(a, b) for a, b in zip(got, by_hand, strict=True))


def test_a_step_that_diverges_is_halved_until_it_does_not():
    start, weights, x, rng = build(4, 8, 3, 2)
    data = table(x, rng.random((6, 3)), np.full((6, 3), 1e4))
    before = network.loss_and_gradient(weights, start, data, ridge=1.0, scale=1.0)[0]
    got, rate = network.descend(weights, start, data, ridge=1.0, scale=1.0, rate=0.1, steps=10)
    assert rate < 0.1
    assert network.loss_and_gradient(got, start, data, ridge=1.0, scale=1.0)[0] < before
