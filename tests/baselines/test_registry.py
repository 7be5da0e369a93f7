import numpy as np
import pytest

from tanbr.baselines import BestKnown, FixedBlend, Nucb, Proportional, RandomBlend, VectorGP
from tanbr.testing import CHECKS, check_learns


def fixed(experts, tasks, *, seed=0, **options):
    return FixedBlend(experts, tasks, **options)


def proportional(experts, tasks, *, seed=0, **options):
    return Proportional(experts, tasks, **options)


def best_known(experts, tasks, *, seed=0, **options):
    table = np.random.default_rng(seed).random((int(experts), int(tasks)))
    return BestKnown(experts, tasks, blends=np.eye(int(experts)), rewards=table, **options)


ROUTERS = {"random": RandomBlend, "fixed": fixed, "proportional": proportional, "nucb": Nucb, "vector GP": VectorGP}


@pytest.mark.parametrize("make", ROUTERS.values(), ids=ROUTERS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_baseline(check, make):
    check(make)


@pytest.mark.parametrize("check", [c for c in CHECKS if "size" not in c.__name__], ids=lambda c: c.__name__)
def test_best_known(check):
    check(best_known)


@pytest.mark.parametrize(("make", "at_least"), [(Nucb, 0.03), (VectorGP, 0.2)], ids=["nucb", "vector GP"])
def test_learns(make, at_least):
    check_learns(make, slots=200, at_least=at_least)
