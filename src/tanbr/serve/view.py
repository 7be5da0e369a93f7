"""The learner at one instant, for those who ask."""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from tanbr.serve.journal import OpenSlot
from tanbr.serve.records import Phase, Why
from tanbr.types import Account, Router, SlotRecord, TreeView


@dataclass(frozen=True, eq=False)
class View:
    """What the learner is at: replaced as a whole, so that whoever looks sees values that belong together."""

    opened: OpenSlot
    phase: Phase
    pinned: bool = False
    last: SlotRecord | None = None  # last slot that was told
    shares: dict[str, float] = field(default_factory=dict)  # of the sources in it
    regret: float = math.nan
    why: Why | None = None
    tree: TreeView | None = None
    account: Account | None = None  # of a router that leaves its baseline only on evidence


def explained(view: View, router: Router) -> View:
    """Add the router's tree, and why it chose what is served, if it did."""
    tree, decision = getattr(router, "tree", None), view.opened.decision
    view = replace(view, account=getattr(router, "account", None))
    if decision is None or tree is None or not decision.terms:
        return replace(view, tree=tree)
    terms, this = decision.why, "this one"
    best = float(np.nanmax(tree.value @ decision.task_mix, initial=-np.inf))
    if len(decision.blends) > 1:
        this = "these together"
        best = float(np.nanmax(tree.value, axis=0, initial=-np.inf) @ decision.task_mix)  # every task at its best blend
    sentence = (
        f"of {terms.candidates} blends {this} may earn most for the mix: {terms.mean:.3f} is expected, "
        f"and it may be up to {terms.bound:.3f}"
    )
    why = Why(sentence, terms.mean, terms.uncertainty, terms.bound)
    return replace(view, tree=tree, regret=max(0.0, best - terms.mean), why=why)
