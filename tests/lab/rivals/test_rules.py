import numpy as np
import pytest

from tanbr.errors import ConfigError
from tanbr.lab.rivals import BestKnown, FixedBlend, Nucb, Proportional, RandomBlend, VectorGP, build
from tanbr.lab.rivals.vector_gp import BETA, CENTRE, NOISE, VARIANCE, covariance
from tanbr.router.contract import CHECKS, check_learns
from tanbr.router.simplex import first_best


def test_best_known_follows_the_mix():
    router = BestKnown(3, 2, blends=np.eye(3), rewards=[[0.9, 0.1], [0.1, 0.9], [0.6, 0.6]])
    assert router.ask([1, 0]).blend.argmax() == 0
    assert router.ask([0, 1]).blend.argmax() == 1
    assert router.ask([0.5, 0.5]).blend.argmax() == 2
    forever = BestKnown(3, 2, blends=np.eye(3), rewards=[[0.9, 0.1], [0.1, 0.9], [0.6, 0.6]], mix=[0.5, 0.5])
    assert forever.ask([1, 0]).blend.argmax() == 2
    assert sorted(forever.ask([1, 0], models=2).blends.argmax(axis=1)) == [0, 1]


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


def seedless(make):
    return lambda experts, tasks, *, seed=0, **options: make(experts, tasks, **options)


def best_known(experts, tasks, *, seed=0, **options):
    table = np.random.default_rng(seed).random((int(experts), int(tasks)))
    return BestKnown(experts, tasks, blends=np.eye(int(experts)), rewards=table, **options)


MADE = {
    "random": RandomBlend,
    "fixed": seedless(FixedBlend),
    "proportional": seedless(Proportional),
    "nucb": Nucb,
    "vector GP": VectorGP,
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_baseline(check, make):
    check(make)


@pytest.mark.parametrize("check", [c for c in CHECKS if "size" not in c.__name__], ids=lambda c: c.__name__)
def test_best_known(check):
    check(best_known)


@pytest.mark.parametrize(("make", "at_least"), [(Nucb, 0.03), (VectorGP, 0.2)], ids=["nucb", "vector GP"])
def test_learns(make, at_least):
    check_learns(make, slots=200, at_least=at_least)


def test_an_unknown_router_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="did you mean 'nucb'"):
        build("nucbb", 3, 2)


def test_the_choice_is_that_of_the_textbooks_posterior():
    """Among the candidates, rebuilt from the same seed, by plain matrix inversion."""
    rng = np.random.default_rng(0)
    blends, rewards, mix = rng.dirichlet(np.ones(3), 6), rng.random((6, 2)), np.array([0.7, 0.3])
    drawn = np.random.default_rng(0).dirichlet(np.full(3, 0.5), size=996)
    candidates = np.concatenate([np.eye(3), np.full((1, 3), 1 / 3), drawn])
    inverse = np.linalg.inv(covariance(blends, blends) + NOISE**2 * np.eye(6))
    cross = covariance(candidates, blends)
    mean = CENTRE + cross @ inverse @ (rewards - CENTRE) @ mix
    gain = np.einsum("nt,nt->n", cross @ inverse, cross)
    bound = mean + BETA * np.sqrt((VARIANCE - gain) * (mix @ mix))

    router = VectorGP(3, 2, seed=0)
    router.warm_start(blends, rewards)
    decision = router.ask(mix)
    terms = router.explain(decision)
    assert np.array_equal(decision.blend, candidates[first_best(bound)])
    assert terms.mean == pytest.approx(mean[first_best(bound)], abs=1e-9)
    assert terms.bound == pytest.approx(bound.max(), abs=1e-9)
