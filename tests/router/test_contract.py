from functools import partial

import numpy as np
import pytest

from tanbr.errors import DecisionError, InputError
from tanbr.router import Tanbr
from tanbr.router.contract import (
    blends_are_feasible,
    check_learns,
    check_router,
)
from tanbr.router.simplex import Sizes, keep_largest
from tanbr.types import Decision, as_counts, as_reward, as_task_mix


class Overspent(Tanbr):
    """Its blends sum to 2."""

    def ask(self, task_mix, *, models=1, confusion=None):  # type: ignore[no-untyped-def]
        decision = super().ask(task_mix)
        return Decision(decision.id, decision.task_mix, 2 * decision.blend)

    def tell(self, decision, reward, counts=None):  # type: ignore[no-untyped-def]
        super().tell(decision.id, reward, counts)


class Bare:
    """What others must write, and no more: it always serves the even blend of its first B experts."""

    def __init__(self, experts: int, tasks: int, *, seed: int = 0, max_active: int | None = None) -> None:
        self.sizes, self.asked, self.waiting = Sizes.check(experts, tasks, max_active), 0, dict[int, Decision]()

    def ask(self, task_mix, *, models=1, confusion=None):  # type: ignore[no-untyped-def]
        if models != 1:
            raise InputError("one model at a time")
        blend = keep_largest(np.full(self.sizes.experts, 1 / self.sizes.experts), self.sizes.max_active)
        decision = Decision(self.asked, as_task_mix(task_mix, tasks=self.sizes.tasks), blend)
        self.waiting[self.asked], self.asked = decision, self.asked + 1
        return decision

    def tell(self, decision, reward, counts=None):  # type: ignore[no-untyped-def]
        wanted = decision.id if isinstance(decision, Decision) else decision
        found = None if isinstance(wanted, bool) else self.waiting.get(wanted)
        if found is None or (isinstance(decision, Decision) and not np.array_equal(decision.blends, found.blends)):
            raise DecisionError(f"decision {wanted} is not open")
        as_counts(counts, reward=as_reward(reward, tasks=self.sizes.tasks))
        del self.waiting[wanted]


def test_ask_and_tell_are_enough() -> None:
    check_router(Bare)


@pytest.mark.parametrize(
    ("check", "router"),
    [
        (blends_are_feasible, Overspent),
        (partial(check_learns, slots=8, at_least=0.3), Bare),
    ],
)
def test_a_router_that_breaks_the_contract_is_found_out(check, router) -> None:
    with pytest.raises(AssertionError):
        check(router)
