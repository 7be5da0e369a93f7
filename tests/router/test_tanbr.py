import functools

import pytest

from tanbr.errors import ConfigError, InputError
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.testing import CHECKS, check_learns

EXACT = RouterConfig.model_validate({"paper": {"confidence": "exact", "rho": 0.9, "layers": 3, "width": 16}})
THEORY = RouterConfig.model_validate({"paper": {"gamma": "theory", "learning_rate": 1e-3, "loss": "mean"}})
SMALL = RouterConfig.model_validate({"default": {"arms": 12, "room": 20}})


def taught(experts, tasks, **options):
    own = tuple(v % max(int(experts), 1) for v in range(int(tasks)))
    return Tanbr(experts, tasks, config=RouterConfig().of_requests(own), **options)


ROUTERS = {
    "default": Tanbr,
    "default, small": functools.partial(Tanbr, config=SMALL),
    "default, own experts known": taught,
    "paper": functools.partial(Tanbr, mode="paper"),
    "paper, exact": functools.partial(Tanbr, mode="paper", config=EXACT),
    "paper, theory": functools.partial(Tanbr, mode="paper", config=THEORY),
}


@pytest.mark.parametrize("make", ROUTERS.values(), ids=ROUTERS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_router(check, make):
    check(make)


def test_default_learns_in_tens_of_slots():
    check_learns(Tanbr, slots=40, at_least=0.25)


def test_paper_mode_learns():
    config = RouterConfig.model_validate({"paper": {"rho": 0.9, "loss": "mean", "learning_rate": 0.01}})
    check_learns(functools.partial(Tanbr, mode="paper", config=config), slots=300, at_least=0.05)


def test_refuses_modes_and_settings_that_do_not_exist():
    with pytest.raises(InputError, match='"default" or "paper"'):
        Tanbr(4, 3, mode="fast")
    with pytest.raises(ConfigError, match="learning_rate"):
        Tanbr(4, 3, mode="paper", config={"paper": {"gamma": "theory", "learning_rate": 0.5}})
    with pytest.raises(ConfigError, match="did you mean 'snap'"):
        Tanbr(4, 3, config={"default": {"snapp": 0.1}})
    with pytest.raises(ConfigError, match=r"unknown key 'default\.forgetting'"):  # a rebuild brought all of it back
        Tanbr(4, 3, config={"default": {"forgetting": 0.98}})
    with pytest.raises(InputError, match="seed"):
        Tanbr(4, 3, seed=-1)
    with pytest.raises(InputError, match="from 2 to 4096"):
        Tanbr(5000, 3)


def test_a_loaded_router_has_the_mode_and_settings_it_was_saved_with(tmp_path):
    router = Tanbr(4, 3, mode="paper", config={"paper": {"rho": 0.3}})
    router.save(tmp_path / "state.npz")
    loaded = Tanbr.load(tmp_path / "state.npz")
    assert loaded.mode == "paper"
    assert loaded.config == router.config
