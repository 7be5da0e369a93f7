import numpy as np
import pytest

from tanbr.errors import ConfigError
from tanbr.lab.rivals import ROUTERS, BestKnown, FixedBlend, Nucb, Proportional, RandomBlend, VectorGP, build
from tanbr.router.config import RouterConfig
from tanbr.router.contract import CHECKS, check_learns


def fixed(experts, tasks, *, seed=0, **options):
    return FixedBlend(experts, tasks, **options)


def proportional(experts, tasks, *, seed=0, **options):
    return Proportional(experts, tasks, **options)


def best_known(experts, tasks, *, seed=0, **options):
    table = np.random.default_rng(seed).random((int(experts), int(tasks)))
    return BestKnown(experts, tasks, blends=np.eye(int(experts)), rewards=table, **options)


MADE = {"random": RandomBlend, "fixed": fixed, "proportional": proportional, "nucb": Nucb, "vector GP": VectorGP}


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


@pytest.mark.parametrize("name", ROUTERS)
def test_every_registered_router_asks_and_tells(name):
    router = build(name, 3, 2, seed=1, config=RouterConfig.model_validate({"default": {"own_experts": (2, 0)}}))
    decision = router.ask([0.9, 0.1])
    router.tell(decision, [0.5, 0.5])
    assert router.open == ()
    if name == "proportional":
        assert decision.blend.tolist() == [0.1, 0.0, 0.9]


def test_an_unknown_router_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="did you mean 'nucb'"):
        build("nucbb", 3, 2)
