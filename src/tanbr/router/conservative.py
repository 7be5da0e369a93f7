"""Do no harm: a baseline that is left only on evidence, as in conservative bandits (Wu 2016, Kazerouni 2017).

The baseline panel B gives every group of tasks their own experts by the shares of the mix, or G times the baseline
blend where that is one blend. A panel x may take its place only while

    Λ + [gain of x over B, at κ deviations below its mean] ≥ −budget · Σ_s reward of B_s

where Λ is what leaving the baseline is expected to have earned so far, the sum is the baseline's expected reward up to
and with this slot, and decisions whose reward is still to come stay charged as x is. The deviation is that of the
difference: a blend near the baseline shares most of its uncertainty, so that small steps are cheap.

A panel sends what is read as u to its model g(u) of highest bound, B to the model h(u) of its group. So the gain is
Σ_u m_u Σ_v P_uv (f_v(x_g(u)) − f_v(b_h(u))), linear in what is expected of pairs of blends: the ledger has one row a
pair, with the mix of tasks that it receives. Rows are valued by what is known now, so that later rewards correct
earlier slots, too; beyond the last `KEPT`, and when rewards are found to have changed, they stay as valued then.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tanbr.router import gp
from tanbr.router.choose import Candidates, Panel, panel_of, wanted, widths
from tanbr.router.known import Known, Rules
from tanbr.router.panel import Readings, proportional_panel, worth
from tanbr.router.simplex import first_best, keep_largest
from tanbr.types import Account, Decision, FloatArray

DOUBT = 0.5  # κ, chosen by hand on tables of real blends, seeds 100 to 105 (docs/router.md, "Do no harm")
MARGIN = 0.003  # by which a bound must exceed the served blend's where the experts' tasks are known: it saves merges
KEPT = 256  # rows of the ledger that are valued anew: as many slots as a kernel is fitted to, at a bounded cost


class Baseline(NamedTuple):
    """The panel that needs no reward."""

    blends: FloatArray  # (G, K)
    home: NDArray[np.intp]  # (V,) the model of what is read as each task


def baseline_panel(rules: Rules, readings: Readings, models: int) -> Baseline:
    """Give the G blends that need no reward, for a mix as it is read."""
    if rules.prior.own is None:
        one = keep_largest(np.full((1, rules.sizes.experts), 1.0 / rules.sizes.experts), rules.sizes.max_active)
        return Baseline(np.repeat(one, models, axis=0), np.zeros(len(readings.mix), dtype=np.intp))
    groups = rules.config.task_groups
    return Baseline(*proportional_panel(readings, models, own=rules.prior.own, groups=groups, sizes=rules.sizes))


def careful(rules: Rules, known: Known, readings: Readings, models: int, open_: Sequence[Decision]) -> Panel:
    """Take the baseline panel, the served one or the wanted one: the one of highest worth that the balance pays for."""
    base, mix, config = baseline_panel(rules, readings, models), readings.mix, rules.config
    served = open_[-1].blends if open_ and open_[-1].id > known.ledger.newest else known.ledger.served
    served = served if len(served) == models else base.blends
    waiting = [blend for decision in open_ for blend in decision.blends]
    want = wanted(rules, known, readings, models, waiting, np.concatenate([base.blends, served]))
    panels = np.array([base.blends, served, want.blends])  # (P, G, K)

    flat = panels.reshape(-1, panels.shape[2])
    mean, gain = gp.at(rules.prior, known.posterior, flat)
    found = Candidates(flat, mean, widths(rules, known, gain, readings.task_mix))
    of_tasks = found.bound.reshape(*panels.shape[:2], -1)  # (P, G, V)
    bounds = readings.bound(of_tasks)
    bounds[0] = _at_home(bounds[0], base.home)
    goes = bounds.argmax(axis=1)[:, None]  # (P, 1, V) the model of what is read as each task
    expected = np.take_along_axis(readings.bound(mean).reshape(bounds.shape), goes, axis=1)[:, 0] @ mix  # (P,)
    unlike = np.zeros((len(panels), len(mix)))  # variance of each reading's difference to the baseline panel
    for model in np.unique(base.home):
        apart = gp.contrast(known.posterior, flat, gain, base.blends[model])
        apart = readings.bound(np.broadcast_to(apart, (len(flat), len(mix)))).reshape(bounds.shape)
        here = base.home == model
        unlike[:, here] = np.take_along_axis(apart, goes, axis=1)[:, 0][:, here]
    least = expected - expected[0] - DOUBT * np.sqrt(known.posterior.mixed(mix, unlike)[0])
    least[0] = 0.0
    balance = total_gain(rules, known) + config.budget * (known.ledger.earned + max(float(expected[0]), 0.0))
    balance += sum(min(decision.why.least_gain, 0.0) for decision in open_)
    if known.practised:  # nothing is tried on users: what is served has won
        balance = 0.0

    value = np.array([worth(bound, mix) for bound in bounds])
    value[1:][(least[1:] < -balance) | (config.budget == 0)] = -np.inf
    best = first_best(value)
    margin = MARGIN if config.own_experts else 0.0
    if value[1] >= value[best] - margin and not same(served, base.blends):
        best = 1
    best = 0 if same(panels[best], base.blends) else best
    chosen = panel_of(found, np.arange(models) + best * models, readings)
    estimates = _at_home(of_tasks[0], base.home) if best == 0 else chosen.estimates  # assignment is by tasks
    every = replace(want.terms[0], baseline=float(expected[0]), least_gain=float(least[best]), balance=float(balance))
    terms = (replace(every, mean=one.mean, uncertainty=one.uncertainty) for one in chosen.terms)
    return Panel(chosen.blends, estimates, tuple(terms))


def same(left: FloatArray, right: FloatArray) -> bool:
    """Whether two panels (G, K) are the same but for rounding."""
    return left.shape == right.shape and bool(np.abs(left - right).max(initial=0.0) <= gp.SAME)


def _at_home(bound: FloatArray, home: NDArray[np.intp]) -> FloatArray:
    """Lower the bounds (G, V) of other models than a task's own below that one's."""
    own = bound[home, np.arange(len(home))]
    away = np.arange(len(bound))[:, None] != home
    return np.where(away, np.minimum(bound, own - 1e-6), bound)


def entered(rules: Rules, known: Known, decision: Decision) -> Known:
    """Enter a slot in the ledger, once its reward has been learned."""
    readings = Readings.of(decision.task_mix, decision.confusion)
    base = baseline_panel(rules, readings, len(decision.blends))
    goes = readings.bound(decision.estimates).argmax(axis=0)
    pairs = sorted(set(zip(goes.tolist(), base.home.tolist(), strict=True)))
    mixes = readings.received(np.array([(goes == g) & (base.home == h) for g, h in pairs]))  # (n, V)
    blends, baselines = (
        np.array(table) for table in zip(*((decision.blends[g], base.blends[h]) for g, h in pairs), strict=True)
    )
    off = np.abs(blends - baselines).max(axis=1) > gp.SAME
    book = known.ledger
    if decision.id > book.newest:
        swapped = len(book.served) > 0 and not same(book.served, decision.blends)
        book = replace(book, newest=decision.id, served=decision.blends, swaps=book.swaps + swapped)
    book = replace(
        book,
        slots=book.slots + 1,
        off=book.off + bool(off.any()),
        earned=book.earned + float((gp.mean_at(rules.prior, known.posterior, baselines) * mixes).sum()),
        mixes=np.concatenate([book.mixes, mixes[off]]),
        blends=np.concatenate([book.blends, blends[off]]),
        baselines=np.concatenate([book.baselines, baselines[off]]),
    )
    return settled(rules, replace(known, ledger=book), keep=KEPT)


def settled(rules: Rules, known: Known, *, keep: int = 0) -> Known:
    """Leave all but the last rows of the ledger at what is expected of them now."""
    book, done = known.ledger, max(len(known.ledger.mixes) - keep, 0)
    gain = _gain(rules, known, slice(done))
    rows = {name: getattr(book, name)[done:] for name in ("mixes", "blends", "baselines")}
    return replace(known, ledger=replace(book, settled=book.settled + gain, **rows))


def _gain(rules: Rules, known: Known, rows: slice) -> float:
    book = known.ledger
    if not len(book.mixes[rows]):
        return 0.0
    mean = gp.mean_at(rules.prior, known.posterior, np.concatenate([book.blends[rows], book.baselines[rows]]))
    left, right = np.split(mean, 2)
    return float(((left - right) * book.mixes[rows]).sum())


def total_gain(rules: Rules, known: Known) -> float:
    """What leaving the baseline is expected to have earned, below 0 what it has cost: Λ."""
    return known.ledger.settled + _gain(rules, known, slice(None))


def account(rules: Rules, known: Known) -> Account | None:
    """What exploration has cost and may cost; None without a baseline."""
    if not rules.careful:
        return None
    book, gain, budget = known.ledger, total_gain(rules, known), rules.config.budget * known.ledger.earned
    return Account(book.slots, book.off, book.swaps, book.earned, gain, budget, gain + budget)
