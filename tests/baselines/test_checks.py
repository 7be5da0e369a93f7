import functools

import numpy as np
import pytest

import checks
from tanbr.baselines import BestKnown, FixedBlend, Nucb, Proportional, RandomBlend, VectorGP


def fixed(experts, tasks, *, seed=0, **options):
    return FixedBlend(experts, tasks, **options)


def proportional(experts, tasks, *, seed=0, **options):
    return Proportional(experts, tasks, **options)


def best_known(experts, tasks, *, seed=0, **options):
    table = np.random.default_rng(seed).random((int(experts), int(tasks)))
    return BestKnown(experts, tasks, blends=np.eye(int(experts)), rewards=table, **options)


ROUTERS = {"random": RandomBlend, "fixed": fixed, "proportional": proportional, "nucb": Nucb, "vector GP": VectorGP}


@pytest.mark.parametrize("make", ROUTERS.values(), ids=ROUTERS)
@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_baseline(check, make, tmp_path):
    check(make, tmp_path)


@pytest.mark.parametrize("check", [c for c in checks.CHECKS if "size" not in c.__name__], ids=lambda c: c.__name__)
def test_best_known(check, tmp_path):
    check(best_known, tmp_path)


@pytest.mark.parametrize(("make", "at_least"), [(Nucb, 0.03), (VectorGP, 0.2)], ids=["nucb", "vector GP"])
def test_learns(make, at_least):
    checks.check_learns(make, slots=200, at_least=at_least)


def test_best_known_follows_the_mix():
    router = BestKnown(3, 2, blends=np.eye(3), rewards=[[0.9, 0.1], [0.1, 0.9], [0.6, 0.6]])
    assert router.ask([1, 0]).blend.argmax() == 0
    assert router.ask([0, 1]).blend.argmax() == 1
    assert router.ask([0.5, 0.5]).blend.argmax() == 2


def test_best_known_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="finite"):
        BestKnown(2, 1, blends=np.eye(2), rewards=[[0.1], [np.nan]])
    with pytest.raises(ValueError, match="must be"):
        BestKnown(2, 1, blends=np.eye(3), rewards=np.zeros((3, 1)))
    with pytest.raises(ValueError, match="at most 1"):
        BestKnown(2, 1, blends=[[0.5, 0.5]], rewards=[[0.1]], max_active=1)


def test_fixed_is_even_unless_told():
    assert np.allclose(FixedBlend(4, 2).ask([0.5, 0.5]).blend, 0.25)
    assert np.allclose(FixedBlend(4, 2, max_active=2).ask([0.5, 0.5]).blend, [0.5, 0.5, 0, 0])
    assert np.allclose(FixedBlend(2, 2, blend=[0.9, 0.1]).ask([0.5, 0.5]).blend, [0.9, 0.1])


def test_proportional_gives_every_expert_its_tasks_share():
    assert np.allclose(Proportional(3, 2, own=[2, 0]).ask([0.7, 0.3]).blend, [0.3, 0, 0.7])
    assert np.allclose(Proportional(2, 3).ask([0.5, 0.2, 0.3]).blend, [0.8, 0.2])  # two tasks, one expert
    with pytest.raises(ValueError, match="own must name one of 2 experts"):
        Proportional(2, 2, own=[0, 2])


def test_vector_gp_matches_the_textbook_posterior():
    from tanbr.baselines import vector_gp as module

    router = VectorGP(3, 2, seed=0)
    rng = np.random.default_rng(0)
    blends, rewards = rng.dirichlet(np.ones(3), 6), rng.random((6, 2))
    router.warm_start(blends, rewards)
    policy = router._policy
    kernel = module.matern(blends, blends) + module.NOISE**2 * np.eye(6)
    cross = module.matern(policy.candidates, blends)
    assert np.allclose(policy.inverse, np.linalg.inv(kernel))
    assert np.allclose(policy.gain, np.einsum("nt,nt->n", cross @ np.linalg.inv(kernel), cross))


def test_nucb_draws_twenty():
    router = functools.partial(Nucb, 4, 2)()
    assert router.explain(router.ask([0.5, 0.5])).candidates == 20
