import numpy as np
import pytest

from tanbr.router.config import DefaultModeConfig
from tanbr.router.fit import tasks_correlation
from tanbr.router.posterior import PooledPosterior

K, V, ARMS, NOISE = 4, 6, 60, 0.05
CONFIG = DefaultModeConfig(arms=ARMS, refits=(), noise=NOISE)


def told(signal, *, unseen=0.0, noise=NOISE):
    """A posterior that was told signal (ARMS, V) around each task's own level, once per arm."""
    rng = np.random.default_rng(0)
    pool = PooledPosterior(np.eye(K), tasks=V, config=CONFIG)
    rewards = rng.uniform(0.3, 0.7, V) + signal + noise * rng.normal(size=(ARMS, V))
    counts = (rng.random((ARMS, V)) >= unseen).astype(float)
    for blend, reward, count in zip(rng.dirichlet(np.ones(K), size=ARMS), rewards, counts, strict=True):
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
