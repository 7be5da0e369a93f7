"""The posterior is the textbook's, its fits find what was put in, and no step writes to a state."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.router import gp
from tanbr.router.gp import CENTRE, MEAN_VARIANCE, WIDTH, Evidence, Prior, correlation

K, V = 4, 3
PRIOR = Prior(tasks=V, noise=0.05**2, variance=0.08, variances=(0.08, 0.15), lift=0.4)
TAUGHT = replace(PRIOR, own=np.eye(4)[[1, 3, 0]])
AROUND = replace(PRIOR, own=np.full((3, 4), 0.25))


def lifted(points):
    """Prior mean (n, V) of `TAUGHT`, by hand: nothing at the even blend, the own expert's weight by its logarithm."""

    def value(weight):
        logarithm = np.log(weight / 0.02) + 1.0 if weight > 0.02 else weight / 0.02
        return logarithm / (1.0 + np.log(50.0))

    return np.array([[0.5 + 0.4 * (value(x[e]) - value(0.25)) for e in (1, 3, 0)] for x in points])


def textbook(points, blends, rewards, counts, *, centre=lambda x: np.full((len(x), V), CENTRE)):
    """Mean (n, V) and variance (n, V) of plain GP regression, each told reward a row of its own."""

    def kernel(a, b):
        return MEAN_VARIANCE + PRIOR.variance * correlation(a, b, WIDTH)

    mean, variance = np.zeros((2, len(points), V))
    for v in range(V):
        seen = counts[:, v] > 0
        x, n = blends[seen], counts[seen, v]
        inverse = np.linalg.inv(kernel(x, x) + np.diag(PRIOR.noise / n))
        cross = kernel(points, x)
        mean[:, v] = centre(points)[:, v] + cross @ inverse @ (rewards[seen, v] - centre(x)[:, v])
        variance[:, v] = MEAN_VARIANCE + PRIOR.variance - np.einsum("nt,nt->n", cross @ inverse, cross)
    return mean, variance


def rows(seed, slots, *, unseen, counted):
    rng = np.random.default_rng(seed)
    arms = rng.dirichlet(np.ones(K), size=6)
    blends = arms[rng.integers(6, size=slots)]
    counts = rng.integers(1, 9, (slots, V)).astype(float) if counted else np.ones((slots, V))
    counts[rng.random((slots, V)) < unseen] = 0.0
    counts[0] = 1.0
    return blends, np.where(counts > 0, rng.random((slots, V)), np.nan), counts, rng.dirichlet(np.ones(K), size=10)


def told(prior, points, *columns):
    state = gp.start(prior, points)
    for row in zip(*columns, strict=True):
        state = gp.observe(prior, state, *row)
    return state


@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.5]), st.booleans(), st.booleans())
@settings(max_examples=25, deadline=None)
def test_posterior_is_the_textbooks_whatever_is_unseen_counted_or_lifted(seed, unseen, counted, own):
    blends, rewards, counts, points = rows(seed, 25, unseen=unseen, counted=counted)
    prior = TAUGHT if own else PRIOR
    state = told(prior, points, blends, rewards, counts)
    mean, variance = textbook(points, blends, rewards, counts, **({"centre": lifted} if own else {}))
    for one in (state, gp.rebuild(prior, state)):  # from pooled means: nothing is lost by pooling
        np.testing.assert_allclose(one.mean, mean, atol=1e-7)
        np.testing.assert_allclose(np.broadcast_to(one.prior - one.gain, variance.shape), variance, atol=1e-7)


def test_one_matrix_serves_all_tasks_until_one_is_unseen_and_no_state_is_written_to():
    blends, rewards, counts, points = rows(0, 10, unseen=0.0, counted=False)
    before = told(PRIOR, points, blends, rewards, counts)
    after = gp.observe(PRIOR, before, blends[0], np.array([0.5, np.nan, 0.5]), np.array([1.0, 0.0, 1.0]))
    assert (len(before.inverse), len(after.inverse)) == (1, V)
    with pytest.raises(ValueError, match="read-only"):
        before.mean[0] = 0.0


@pytest.mark.parametrize("prior", [PRIOR, TAUGHT, AROUND], ids=["plain", "own experts", "baseline"])
@pytest.mark.parametrize("unseen", [0.0, 0.5])
def test_slope_matches_finite_differences(unseen, prior):
    blends, rewards, counts, points = rows(2, 20, unseen=unseen, counted=False)
    state = told(prior, points, blends, rewards, counts)
    mix = np.array([0.5, 0.3, 0.2])

    def bound(x):
        mean, gain = gp.at(prior, state, x)
        return mean @ mix + 1.7 * np.sqrt(state.mixed(mix, state.prior - gain)[0])

    x = np.random.default_rng(3).dirichlet(np.ones(K), size=4)
    numeric = np.array([(bound(x + h) - bound(x - h)) / 2e-5 for h in 1e-5 * np.eye(K)]).T
    np.testing.assert_allclose(gp.slope_of_bound(prior, state, x, mix, 1.7), numeric, atol=1e-5)


def test_forgotten_tasks_are_as_if_never_told():
    rng = np.random.default_rng(0)
    points, blends, rewards = rng.dirichlet(np.ones(K), 6), rng.dirichlet(np.ones(K), 8), rng.random((8, V))
    whole = told(PRIOR, points, blends, rewards, np.ones((8, V)))
    half = told(PRIOR, points, blends, rewards, np.tile([0.0, 1.0, 1.0], (8, 1)))
    forgot = gp.forget_tasks(PRIOR, whole, np.array([0]))
    np.testing.assert_allclose(forgot.mean, half.mean, atol=1e-9)
    np.testing.assert_allclose(forgot.gain, half.gain, atol=1e-9)
    nothing = gp.forget_tasks(PRIOR, forgot, np.array([1, 2]))
    assert not len(nothing.arms)
    np.testing.assert_allclose(nothing.mean, 0.5)


ARMS = 60


@pytest.fixture(params=[0.0, 0.5], ids=["all seen", "half unseen"])
def risen(request):
    """Make a posterior that was told rewards which rise with the weight of each task's own expert, by a lift."""

    def make(lift, *, deviation=0.02, own_lift=0.4):
        rng = np.random.default_rng(3)
        prior = replace(TAUGHT, lift=own_lift, noise=deviation**2, variance=0.003)
        blends = rng.dirichlet(np.ones(K), size=ARMS)
        seen = rng.random((ARMS, V)) >= request.param
        rewards = 0.5 + lift * gp.feature(prior, blends) + deviation * rng.normal(size=(ARMS, V))
        return prior, told(prior, np.eye(K), blends, np.where(seen, rewards, np.nan), seen.astype(float))

    return make


@pytest.mark.parametrize("lift", [0.0, 0.05, 0.3, 0.7])
def test_the_lift_is_learned_and_rather_too_high_than_too_low(risen, lift):
    prior, state = risen(lift)
    assert state.lift == 0.4
    after = gp.refit(prior, state)
    _, best, error = Evidence(prior, state)(after.width, after.noise, after.variance)
    assert error < 0.1  # what was expected of it has .2
    assert best == pytest.approx(lift, abs=4 * error)
    assert after.lift == max(best, min(best + 2 * error, 0.4))
