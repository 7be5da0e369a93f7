import functools

import pytest

import checks
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig

EXACT = RouterConfig.model_validate({"paper": {"confidence": "exact", "rho": 0.9, "layers": 3, "width": 16}})
THEORY = RouterConfig.model_validate({"paper": {"gamma": "theory", "learning_rate": 1e-3, "loss": "mean"}})
SMALL = RouterConfig.model_validate({"default": {"arms": 12, "room": 20, "forgetting": 0.98}})


def taught(experts, tasks, **options):
    own = tuple(v % max(int(experts), 1) for v in range(int(tasks)))
    return Tanbr(experts, tasks, config=RouterConfig().of_requests(own), **options)


ROUTERS = {
    "default": Tanbr,
    "default, small and forgetting": functools.partial(Tanbr, config=SMALL),
    "default, own experts known": taught,
    "paper": functools.partial(Tanbr, mode="paper"),
    "paper, exact": functools.partial(Tanbr, mode="paper", config=EXACT),
    "paper, theory": functools.partial(Tanbr, mode="paper", config=THEORY),
}


@pytest.mark.parametrize("make", ROUTERS.values(), ids=ROUTERS)
@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_router(check, make, tmp_path):
    check(make, tmp_path)


def test_default_learns_in_tens_of_slots():
    checks.check_learns(Tanbr, slots=40, at_least=0.25)


def test_paper_mode_learns():
    config = RouterConfig.model_validate({"paper": {"rho": 0.9, "loss": "mean", "learning_rate": 0.01}})
    checks.check_learns(functools.partial(Tanbr, mode="paper", config=config), slots=300, at_least=0.05)
