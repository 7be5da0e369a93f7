import numpy as np
import pytest

from tanbr.errors import ConfigError
from tanbr.lab.rivals import BestKnown, FixedBlend, Nucb, Proportional, RandomBlend, VectorGP, build
from tanbr.router.contract import CHECKS, check_learns


def test_best_known_follows_the_mix():
    router = BestKnown(3, 2, blends=np.eye(3), rewards=[[0.9, 0.1], [0.1, 0.9], [0.6, 0.6]])
    assert router.ask([1, 0]).blend.argmax() == 0
    assert router.ask([0, 1]).blend.argmax() == 1
    assert router.ask([0.5, 0.5]).blend.argmax() == 2
    forever = BestKnown(3, 2, blends=np.eye(3), rewards=[[0.9, 0.1], [0.1, 0.9], [0.6, 0.6]], mix=[0.5, 0.5])
    assert forever.ask([1, 0]).blend.argmax() == 2
    assert sorted(forever.ask([1, 0], models=2).blends.argmax(axis=1)) == [0, 1]


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
    "best known": best_known,
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_baseline(check, make):
    check(make)


@pytest.mark.parametrize(("make", "at_least"), [(Nucb, 0.03), (VectorGP, 0.2)], ids=["nucb", "vector GP"])
def test_learns(make, at_least):
    check_learns(make, slots=200, at_least=at_least)


def test_an_unknown_router_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="did you mean 'nucb'"):
        build("nucbb", 3, 2)
