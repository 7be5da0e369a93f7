import numpy as np
import pytest
from tanbr.router.fit import Evidence, tasks_correlation
from tanbr.router.posterior import PooledPosterior

from tanbr.router import fit
from tanbr.router.config import DefaultModeConfig

K, V, ARMS, NOISE = 4, 6, 60, 0.05
CONFIG = DefaultModeConfig(arms=ARMS, refits=(), noise=NOISE)


def told(signal, *, unseen=0.0, noise=NOISE):
    """A posterior that was told signal (ARMS, V), or a function of the arms, around each task's own level."""
    rng = np.random.default_rng(0)
    pool = PooledPosterior(np.eye(K), tasks=V, config=CONFIG)
    level, error = rng.uniform(0.3, 0.7, V), noise * rng.normal(size=(ARMS, V))
    counts = (rng.random((ARMS, V)) >= unseen).astype(float)
    arms = rng.dirichlet(np.ones(K), size=ARMS)
    rewards = level + (signal(arms) if callable(signal) else signal) + error
    for blend, reward, count in zip(arms, rewards, counts, strict=True):
        pool.observe(blend, np.where(count > 0, reward, np.nan), count)
    return pool


def drawn(*shape):
    return 0.2 * np.random.default_rng(1).normal(size=shape)


# an estimate from 60 arms and 15 pairs of tasks has a standard error of about 1/√(60·15) = .03 around 0
@pytest.mark.parametrize("unseen", [0.0, 0.5])
def test_tasks_that_rise_and_fall_together_are_told_from_those_that_do_not(unseen):
    alone, shared = drawn(ARMS, V), drawn(ARMS, 1)
    assert tasks_correlation(told(alone, unseen=unseen), NOISE**2) < 0.25
    assert tasks_correlation(told(shared + 0 * alone, unseen=unseen), NOISE**2) > 0.9
    half = np.sqrt(0.5) * (shared + alone)
    assert tasks_correlation(told(half, unseen=unseen), NOISE**2) == pytest.approx(0.5, abs=0.2)


def test_rewards_that_differ_by_noise_alone_say_nothing_about_the_tasks():
    pool = told(np.zeros((ARMS, V)))
    assert tasks_correlation(pool, NOISE**2) == pool.correlation == CONFIG.correlation


def test_before_the_first_fit_the_correlation_may_only_rise():
    pool = told(drawn(ARMS, V))
    assert tasks_correlation(pool, NOISE**2) < CONFIG.correlation
    pool.refit_early()
    assert pool.correlation == CONFIG.correlation


def test_an_early_fit_corrects_noise_and_correlation_and_leaves_the_kernel():
    pool = told(drawn(ARMS, 1) + np.zeros((ARMS, V)))
    kernel = pool.width, pool.variance
    pool.refit_early()
    assert pool.correlation > 0.9
    assert (pool.width, pool.variance) == kernel


def test_a_smooth_map_gets_a_wide_kernel_and_a_rough_one_a_narrow_one():
    smooth = told(lambda arms: 0.3 * arms[:, :1] + np.zeros(V))
    rough = told(lambda arms: 0.2 * np.sin(12 * arms[:, :1]) + np.zeros(V))
    for pool in (smooth, rough):
        pool.refit()
    assert (rough.width, smooth.width) == (min(CONFIG.widths), max(CONFIG.widths))
    assert smooth.width > 1.0  # experts are √2 apart: a line across the simplex needs a kernel of that order


OWN = (2, 0, 3)


@pytest.fixture(params=[0.0, 0.5], ids=["all seen", "half unseen"])
def lifted(request):
    """Make a posterior that was told rewards which rise with the weight of each task's own expert, by a lift."""

    def make(lift, *, deviation=0.02, own_lift=0.4, **more):
        rng = np.random.default_rng(3)
        config = DefaultModeConfig(
            arms=ARMS, own_experts=OWN, own_lift=own_lift, noise=deviation, variance=0.003, **more
        )  # fmt: skip
        pool = PooledPosterior(np.eye(K), tasks=len(OWN), config=config)
        for blend in rng.dirichlet(np.ones(K), size=ARMS):
            seen = rng.random(len(OWN)) >= request.param
            reward = 0.5 + lift * pool.feature(blend[None])[0] + deviation * rng.normal(size=len(OWN))
            pool.observe(blend, np.where(seen, reward, np.nan), seen.astype(float))
        return pool

    return make


@pytest.mark.parametrize("lift", [0.0, 0.05, 0.3, 0.7])
def test_the_lift_is_learned_early_and_late(lifted, lift):
    pool = lifted(lift)
    assert pool.lift == 0.4
    evidence = Evidence(pool)
    for fitted in (pool.refit_early, pool.refit):
        fitted()
        _, best, error = evidence(pool.width, pool.noise, pool.variance)
        assert error < 0.1  # what was expected of it has .2
        assert best == pytest.approx(lift, abs=4 * error)
        assert pool.lift == max(best, min(best + 2 * error, 0.4))  # rather too high than too low


def test_the_lift_is_where_the_likelihood_is_highest(lifted):
    pool = lifted(0.2)
    height, best, _ = Evidence(pool)(0.5, 0.02**2, 0.003)
    for other in (best - 0.05, best + 0.05):  # the same likelihood at another lift: a prior that is sure of it
        sure = lifted(0.2, own_lift=other)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fit, "DOUBT", 1e-6)
            there, lift, _ = Evidence(sure)(0.5, 0.02**2, 0.003)
        assert lift == pytest.approx(other, abs=1e-6)
        assert there < height


def test_nothing_is_lifted_where_no_blend_is_expected_above_another():
    pool = told(drawn(ARMS, V))
    pool.refit()
    assert pool.lift == CONFIG.own_lift
    assert pool.expected(np.eye(K)) == 0.5


def test_a_router_that_starts_over_and_one_that_is_restored_have_their_lift(lifted):
    pool = lifted(0.05)
    pool.refit_early()
    other = lifted(0.6)
    other.restore(pool.state)
    assert other.lift == pool.lift
    np.testing.assert_array_equal(other.mean_at(np.eye(K)), pool.mean_at(np.eye(K)))
    other.start_over()
    assert other.lift == 0.4
