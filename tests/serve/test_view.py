import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.router.shell import lone_root
from tanbr.serve.journal import OpenSlot
from tanbr.serve.records import Phase, Reason
from tanbr.serve.view import View, explained
from tanbr.types import Decision, Terms

MIX, BLEND = np.array([0.5, 0.5]), np.array([1.0, 0.0])
TERMS = Terms(mean=0.5, uncertainty=0.25, candidates=9)


def view(decision: Decision | None) -> View:
    return View(OpenSlot(4, (2,), MIX, BLEND[None], decision, Reason.CHOSEN), Phase.LEARNING)


def router(tree: Any) -> Any:
    return SimpleNamespace(tree=tree)


def test_a_choice_of_the_routers_is_explained_with_its_regret() -> None:
    tree = lone_root(2, 2)
    tree.value[:] = 0.75
    seen = explained(view(Decision(1, MIX, BLEND, terms=(TERMS,))), router(tree))
    assert seen.tree is tree
    assert seen.why is not None
    assert "of 9 blends this one may earn most for the mix: 0.500 is expected" in seen.why.sentence
    assert seen.regret == pytest.approx(0.25)


@pytest.mark.parametrize(("decision", "tree"), [(None, lone_root(2, 2)), (Decision(1, MIX, BLEND), None)])
def test_what_the_router_did_not_choose_or_cannot_show_has_no_reason(decision, tree) -> None:
    seen = explained(view(decision), router(tree))
    assert seen.tree is tree
    assert seen.why is None
    assert math.isnan(seen.regret)


def test_the_accounts_of_exploration_are_shown_where_there_are_any() -> None:
    careful = Tanbr(2, 2, seed=0, config=RouterConfig().of_requests((0, 1)))
    careful.tell(careful.ask(MIX), [0.5, 0.5], [8, 8])
    seen = explained(view(None), careful)
    assert seen.account is not None
    assert (seen.account.slots, seen.account.balance) == (1, seen.account.gain + seen.account.budget)
    assert explained(view(None), router(None)).account is None
