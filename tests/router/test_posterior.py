import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.router.config import DefaultModeConfig
from tanbr.router.kernel import CENTRE, correlation
from tanbr.router.posterior import PooledPosterior

K, V = 4, 3
CONFIG = DefaultModeConfig(arms=40, refits=())
TAUGHT = CONFIG.model_copy(update={"own_experts": (1, 3, 0)})


def lifted(points):
    """Prior mean (n, V) of `TAUGHT`, by hand: nothing at the even blend, the own expert's weight by its logarithm."""

    def value(weight):
        logarithm = np.log(weight / 0.02) + 1.0 if weight > 0.02 else weight / 0.02
        return logarithm / (1.0 + np.log(50.0))

    return np.array([[0.5 + 0.4 * (value(x[e]) - value(0.25)) for e in (1, 3, 0)] for x in points])


def textbook(points, blends, rewards, counts, *, centre=lambda x: np.full((len(x), V), CENTRE)):
    """Mean (n, V) and variance (n, V) of plain GP regression, each told reward a row of its own."""

    def kernel(a, b):
        return CONFIG.mean_variance + CONFIG.variance * correlation(a, b, CONFIG.width)

    mean, variance = np.zeros((2, len(points), V))
    for v in range(V):
        seen = counts[:, v] > 0
        x, n = blends[seen], counts[seen, v]
        inverse = np.linalg.inv(kernel(x, x) + np.diag(CONFIG.noise**2 / n))
        cross = kernel(points, x)
        mean[:, v] = centre(points)[:, v] + cross @ inverse @ (rewards[seen, v] - centre(x)[:, v])
        variance[:, v] = CONFIG.mean_variance + CONFIG.variance - np.einsum("nt,nt->n", cross @ inverse, cross)
    return mean, variance


def told(seed, slots, *, unseen, counted):
    rng = np.random.default_rng(seed)
    arms = rng.dirichlet(np.ones(K), size=6)
    blends = arms[rng.integers(6, size=slots)]
    counts = rng.integers(1, 9, (slots, V)).astype(float) if counted else np.ones((slots, V))
    counts[rng.random((slots, V)) < unseen] = 0.0
    counts[0] = 1.0
    return blends, np.where(counts > 0, rng.random((slots, V)), np.nan), counts, rng.dirichlet(np.ones(K), size=10)


@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.5]), st.booleans())
@settings(max_examples=25)
def test_posterior_is_the_textbooks_whatever_is_unseen_or_counted(seed, unseen, counted):
    blends, rewards, counts, points = told(seed, 25, unseen=unseen, counted=counted)
    pool = PooledPosterior(points.copy(), tasks=V, config=CONFIG)
    for row in zip(blends, rewards, counts, strict=True):
        pool.observe(*row)
    mean, variance = textbook(points, blends, rewards, counts)
    assert np.allclose(pool.mean, mean, atol=1e-7)
    assert np.allclose(pool.prior - pool.gain, variance, atol=1e-7)
    pool.rebuild()  # from pooled means: nothing is lost by pooling
    assert np.allclose(pool.mean, mean, atol=1e-7)
    assert np.allclose(pool.prior - pool.gain, variance, atol=1e-7)


def test_one_matrix_serves_all_tasks_until_one_is_unseen():
    blends, rewards, counts, points = told(0, 10, unseen=0.0, counted=False)
    pool = PooledPosterior(points, tasks=V, config=CONFIG)
    for row in zip(blends, rewards, counts, strict=True):
        pool.observe(*row)
    assert len(pool.inverse) == 1
    pool.observe(blends[0], np.array([0.5, np.nan, 0.5]), np.array([1.0, 0.0, 1.0]))
    assert len(pool.inverse) == V


def test_replaced_points_have_the_posterior_of_their_place():
    blends, rewards, counts, points = told(1, 20, unseen=0.3, counted=True)
    pool = PooledPosterior(points.copy(), tasks=V, config=CONFIG)
    for row in zip(blends, rewards, counts, strict=True):
        pool.observe(*row)
    fresh = np.random.default_rng(5).dirichlet(np.ones(K), size=3)
    pool.replace_points(np.array([7, 2, 4]), fresh)
    mean, variance = textbook(fresh, blends, rewards, counts)
    assert np.allclose(pool.mean[[7, 2, 4]], mean, atol=1e-7)
    assert np.allclose((pool.prior - pool.gain)[[7, 2, 4]], variance, atol=1e-7)


def test_a_tasks_own_expert_lifts_what_is_expected_of_it():
    blends, rewards, counts, points = told(4, 20, unseen=0.3, counted=True)
    pool = PooledPosterior(points.copy(), tasks=V, config=TAUGHT)
    assert np.allclose(pool.mean, lifted(points))
    for row in zip(blends, rewards, counts, strict=True):
        pool.observe(*row)
    mean, variance = textbook(points, blends, rewards, counts, centre=lifted)
    for _ in range(2):
        assert np.allclose(pool.mean, mean, atol=1e-7)
        assert np.allclose(pool.prior - pool.gain, variance, atol=1e-7)
        pool.rebuild()


@pytest.mark.parametrize("config", [CONFIG, TAUGHT])
@pytest.mark.parametrize("unseen", [0.0, 0.5])
def test_slope_matches_finite_differences(unseen, config):
    blends, rewards, counts, points = told(2, 20, unseen=unseen, counted=False)
    pool = PooledPosterior(points.copy(), tasks=V, config=config)
    for row in zip(blends, rewards, counts, strict=True):
        pool.observe(*row)
    mix = np.array([0.5, 0.3, 0.2])

    def bound(x):
        pool.replace_points(np.arange(len(x)), x)
        rows = slice(len(x))
        return pool.mean[rows] @ mix + 1.7 * np.sqrt(pool.variance_of(mix, pool.gain[rows]))

    x = np.random.default_rng(3).dirichlet(np.ones(K), size=4)
    numeric = np.array([(bound(x + h) - bound(x - h)) / 2e-5 for h in 1e-5 * np.eye(K)]).T
    assert np.allclose(pool.slope_of_bound(x, mix, 1.7), numeric, atol=1e-5)


def test_correlated_tasks_average_out_less():
    pool = PooledPosterior(np.eye(K), tasks=V, config=CONFIG)
    mix, gain = np.full(V, 1 / V), np.zeros((K, V))
    pool.correlation = 0.0
    assert np.allclose(pool.variance_of(mix, gain), pool.prior / V)
    pool.correlation = 1.0
    assert np.allclose(pool.variance_of(mix, gain), pool.prior)
    assert pool.prior_of(mix) == pytest.approx(pool.prior)


def test_full_pool_makes_room_and_keeps_what_was_told_most():
    config = DefaultModeConfig(arms=8, refits=())
    pool = PooledPosterior(np.eye(K), tasks=V, config=config)
    rng = np.random.default_rng(0)
    for _ in range(5):
        pool.observe(np.eye(K)[0], np.full(V, 0.9), np.ones(V))
    for _ in range(30):
        pool.observe(rng.dirichlet(np.ones(K)), np.full(V, 0.5), np.ones(V))
    assert pool.used <= 8
    assert pool.nearest(np.eye(K)[0])[1] == 0.0
    assert pool.mean[0, 0] > 0.8


def test_refit_finds_noise_and_correlation():
    rng = np.random.default_rng(0)
    arms = rng.dirichlet(np.ones(K), size=30)
    pool = PooledPosterior(np.eye(K), tasks=V, config=DefaultModeConfig())
    truth = np.repeat(0.5 + 0.4 * np.cos(5 * arms[:, :1]), V, axis=1)
    for slot in range(90):
        noisy = np.clip(truth[slot % 30] + 0.15 * rng.normal(size=V), 0, 1)
        pool.observe(arms[slot % 30], noisy, np.ones(V))
    pool.refit()
    assert np.sqrt(pool.noise) == pytest.approx(0.15, rel=0.5)
    assert pool.correlation > 0.5
