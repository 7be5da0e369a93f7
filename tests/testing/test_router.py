from itertools import count

import pytest
from tanbr.testing.router import blends_are_feasible, check_learns, same_seed_same_choices

from tanbr.router import Tanbr
from tanbr.types import Decision


class Overspent(Tanbr):
    """Its blends sum to 2."""

    def ask(self, task_mix, *, models=None, confusion=None):  # type: ignore[no-untyped-def]
        decision = super().ask(task_mix)
        return Decision(decision.id, decision.task_mix, 2 * decision.blend)

    def tell(self, decision, reward, counts=None):  # type: ignore[no-untyped-def]
        super().tell(decision.id, reward, counts)


SEEDS = count()


class Moody(Tanbr):
    """Takes no notice of its seed."""

    def __init__(self, *sizes: int, seed: int = 0, **settings: int) -> None:
        super().__init__(*sizes, seed=next(SEEDS), **settings)  # type: ignore[arg-type]


def test_a_good_router_passes() -> None:
    same_seed_same_choices(Tanbr)
    blends_are_feasible(Tanbr)


def test_a_router_whose_blends_sum_to_2_is_found_out() -> None:
    with pytest.raises(AssertionError):
        blends_are_feasible(Overspent)


def test_a_router_that_takes_no_notice_of_its_seed_is_found_out() -> None:
    with pytest.raises(AssertionError):
        same_seed_same_choices(Moody)


def test_a_router_that_learns_nothing_is_found_out() -> None:
    with pytest.raises(AssertionError):
        check_learns(Tanbr, slots=1, at_least=0.899)
