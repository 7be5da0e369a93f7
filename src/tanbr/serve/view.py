"""The learner at one instant, for those who ask."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tanbr.loop.turn import Learner
from tanbr.serve.records import Why
from tanbr.types import Account, SlotRecord, TreeView


@dataclass(frozen=True, eq=False)
class View:
    """What the learner is at: replaced as a whole, so that whoever looks sees values that belong together."""

    learner: Learner
    last: SlotRecord | None = None  # last slot that was told
    shares: tuple[tuple[str, float], ...] = ()  # of the sources in it
    regret: float = math.nan  # of the open slot, as the router believes
    why: Why | None = None
    tree: TreeView | None = None
    account: Account | None = None  # of a router that leaves its baseline only on evidence


def view_of(learner: Learner, last: SlotRecord | None = None, shares: tuple[tuple[str, float], ...] = ()) -> View:
    """Show the learner, with the router's tree and why it chose what is served, as far as it says so."""
    router: Any = learner.router
    tree, account = getattr(router, "tree", None), getattr(router, "account", None)
    decision = learner.slot.decision
    if decision is None or not decision.terms or tree is None:
        return View(learner, last, shares, tree=tree, account=account)
    terms, mix = decision.why, decision.task_mix
    if len(decision.blends) > 1:  # every task at its best blend
        this, best = "these together", float(np.nanmax(tree.value, axis=0, initial=-np.inf) @ mix)
    else:
        this, best = "this one", float(np.nanmax(tree.value @ mix, initial=-np.inf))
    sentence = (
        f"of {terms.candidates} blends {this} may earn most for the mix: {terms.mean:.3f} is expected, "
        f"and it may be up to {terms.bound:.3f}"
    )
    why = Why(sentence, terms.mean, terms.uncertainty, terms.bound)
    return View(learner, last, shares, max(0.0, best - terms.mean), why, tree, account)


def shown_safely(
    learner: Learner, last: SlotRecord | None = None, shares: tuple[tuple[str, float], ...] = ()
) -> tuple[View, str]:
    """Show the learner, and say what failed: a router that cannot explain itself may serve all the same."""
    try:
        return view_of(learner, last, shares), ""
    except Exception as error:
        return View(learner, last, shares), f"the router does not explain itself: {type(error).__name__}: {error}"
