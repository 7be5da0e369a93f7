from functools import partial

import numpy as np
import pytest

from tanbr.router import Tanbr
from tanbr.router.contract import blends_are_feasible, check_learns, check_router
from tanbr.router.own import OwnRouter
from tanbr.types import Decision


class Bare:
    """What others must write, and no more: it always serves the even blend."""

    def __init__(self, experts: int, tasks: int) -> None:
        self.even = np.full(experts, 1 / experts)

    def ask(self, task_mix):  # type: ignore[no-untyped-def]
        return self.even

    def tell(self, decision, reward):  # type: ignore[no-untyped-def]
        pass


class Overspent(Tanbr):
    """Its blends sum to 2."""

    def ask(self, task_mix, *, models=1, confusion=None):  # type: ignore[no-untyped-def]
        decision = super().ask(task_mix)
        return Decision(decision.id, decision.task_mix, 2 * decision.blend)

    def tell(self, decision, reward, counts=None):  # type: ignore[no-untyped-def]
        super().tell(decision.id, reward, counts)


def test_ask_and_tell_are_enough() -> None:
    check_router(Bare)


@pytest.mark.parametrize(
    ("check", "router"),
    [(blends_are_feasible, Overspent), (partial(check_learns, slots=8, at_least=0.3), partial(OwnRouter, Bare))],
)
def test_a_router_that_breaks_the_contract_is_found_out(check, router) -> None:
    with pytest.raises(AssertionError):
        check(router)
