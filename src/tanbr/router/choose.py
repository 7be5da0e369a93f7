"""What the default router chooses: G blends of highest upper confidence bound.

Candidates are fixed blends, whose posterior `learn` has kept up to date, and the baseline panel, which needs no reward.
From the panel found among these each model climbs the bound of its own requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tanbr.router import gp
from tanbr.router.known import Known, Rules
from tanbr.router.panel import (
    Readings,
    Rows,
    chosen,
    exchanged,
    group_mixes,
    proportional_blends,
    proportional_panel,
    worth,
)  # fmt: skip
from tanbr.router.simplex import keep_largest
from tanbr.types import Blend, FloatArray, TaskMix, Terms

MOST_OPEN = 16  # open blends an ask looks at: older ones have long lowered what is expected around them
OPEN_REACH = 0.5  # how far, in kernel widths, an open blend lowers the variance: as if half of it were told
SNAP = 0.03  # a blend this near (Euclid) to a known arm is played as that arm: rewards there differ by less than noise
MARGIN = 0.003  # by which a bound must exceed the served blend's where the experts' tasks are known: it saves merges
CLIMB_ROUNDS = 2  # of climbing and exchange after a panel is chosen; a third changed nothing
CLIMBS = (0.1, 0.05)  # length (Euclid) of each gradient step of a round: a fourteenth of the way between two experts


@dataclass(frozen=True, eq=False)
class Candidates:
    """Blends that may be chosen, and the terms of each task's bound at each."""

    blends: FloatArray  # (n, K)
    mean: FloatArray  # (n, V) predicted reward
    width: FloatArray  # (n, V) each task's share of the β deviations

    @property
    def bound(self) -> FloatArray:
        """U_v(x): (n, V)."""
        return np.asarray(self.mean + self.width)

    def joined(self, other: "Candidates") -> "Candidates":
        """Put other candidates behind these."""
        return Candidates(**{name: np.concatenate([own, vars(other)[name]]) for name, own in vars(self).items()})


@dataclass(frozen=True, eq=False)
class Panel:
    """G blends, what each task is taken to earn at each, and why."""

    blends: FloatArray  # (G, K)
    estimates: FloatArray  # (G, V)
    terms: tuple[Terms, ...]  # (G,)


def panel_of(found: Candidates, rows: Rows, readings: Readings) -> Panel:
    """Say of the chosen rows what the server and an operator need to know."""
    bound, count = found.bound[rows], len(found.blends)
    own = zip(found.mean[rows], found.width[rows], group_mixes(bound, readings), strict=True)
    terms = tuple(
        Terms(float(mean @ mix), uncertainty=float(width @ mix), candidates=count) for mean, width, mix in own
    )
    return Panel(found.blends[rows], bound, terms)


Baseline: TypeAlias = tuple[FloatArray, NDArray[np.intp]]  # G blends (G, K), and each task's model (V,)


def baseline_panel(rules: Rules, readings: Readings, models: int) -> Baseline:
    """Give the G blends (G, K) that need no reward, and each task's model (V,): even where nobody knows its expert."""
    K, V, own = rules.sizes.experts, rules.sizes.tasks, rules.prior.own
    likely = np.full((V, K), 1.0 / K) if own is None else own
    return proportional_panel(readings, models, own=likely, groups=rules.config.task_groups, sizes=rules.sizes)


def wanted(rules: Rules, known: Known, readings: Readings, models: int, waiting: Sequence[Blend]) -> Panel:
    """Choose G blends jointly, then let each climb for the mix of the requests it receives.

    `waiting` are blends whose reward is still to come; the last ones are served, and stay if they are as good but for
    `MARGIN`.
    """
    mix, baseline = readings.task_mix, baseline_panel(rules, readings, models)
    kept = kept_candidates(rules, known, mix, waiting, baseline)
    found = kept.joined(_bounded(rules, known, baseline[0], mix, baseline))
    base = len(kept.blends) + np.arange(models)
    if not len(known.posterior.arms) and not len(waiting):
        return panel_of(found, base, readings)
    if rules.prior.own is None:  # the even blend is no better than others
        found, rows = kept, chosen(kept.bound, readings, models)
    else:
        rows = chosen(found.bound, readings, models, start=base)
    for _ in range(CLIMB_ROUNDS):
        offers = _offers(rules, known, found, rows, readings)
        found = found.joined(_bounded(rules, known, offers, mix, baseline))
        rows = exchanged(readings.bound(found.bound), readings.mix, rows)
    if rules.config.own_experts and len(waiting) >= models:
        served = _bounded(rules, known, np.array(waiting[-models:]), mix, baseline)
        now, best = (worth(readings.bound(bound), readings.mix) for bound in (served.bound, found.bound[rows]))
        if now >= best - MARGIN:
            return panel_of(served, np.arange(models), readings)
    panel = panel_of(found, rows, readings)
    return Panel(np.array([snapped(rules, known, blend) for blend in panel.blends]), panel.estimates, panel.terms)


def kept_candidates(
    rules: Rules, known: Known, mix: TaskMix, waiting: Sequence[Blend], baseline: Baseline
) -> Candidates:
    """All blends whose posterior is kept, less unsure of themselves where a reward is still to come."""
    pool = known.posterior
    width = widths(rules, known, pool.points, pool.gain, mix, baseline)
    if rules.beta(known) > 0:
        variance = pool.mixed(mix, pool.prior - pool.gain)[0]
        left = np.ones(len(variance))
        for blend in waiting[-MOST_OPEN:]:
            near = gp.correlation(pool.points, blend[None], OPEN_REACH * pool.width)[:, 0]
            there = float((variance * left)[int(near.argmax())])
            left *= 1.0 - near * near * there / (there + pool.noise * float(mix @ mix))
        width = width * np.sqrt(left)[:, None]
    return Candidates(pool.points, pool.mean, width)


def widths(
    rules: Rules, known: Known, blends: FloatArray, gain: FloatArray, mix: TaskMix, baseline: Baseline
) -> FloatArray:
    """Share β deviations of ψᵀr out to the tasks by their own deviations: (n, V).

    Where β is below 0 they are taken away, and are those of the difference from the baseline: what is near to that is
    hardly doubted.
    """
    pool, beta = known.posterior, rules.beta(known)
    variance = np.maximum(pool.prior - gain, 1e-12)
    if beta < 0:
        of_models = np.stack([gp.contrast(pool, blends, gain, blend) for blend in baseline[0]])  # (G, n, M)
        tasks = np.arange(len(mix))
        variance = of_models[baseline[1], :, np.minimum(tasks, of_models.shape[2] - 1)].T  # (n, V)
    deviation = np.sqrt(np.maximum(variance, 1e-12)) * np.ones(len(mix))
    whole = np.sqrt(pool.mixed(mix, variance)[0])
    return np.asarray(beta * (whole / (deviation @ mix))[:, None] * deviation)


def _bounded(rules: Rules, known: Known, blends: FloatArray, mix: TaskMix, baseline: Baseline) -> Candidates:
    """Make candidates of any blends (n, K)."""
    mean, gain = gp.at(rules.prior, known.posterior, blends)
    return Candidates(blends, mean, widths(rules, known, blends, gain, mix, baseline))


def _offers(rules: Rules, known: Known, found: Candidates, rows: Rows, readings: Readings) -> FloatArray:
    """Offer each model its own blend moved up the bound of its own mix, and its own tasks' proportional blend."""
    bound, blends = found.bound[rows], found.blends[rows]
    offers = climbed(rules, known, blends, group_mixes(bound, readings))
    if (own := rules.prior.own) is not None:
        labels = readings.bound(bound).argmax(axis=0)
        straight = proportional_blends(readings, labels, len(rows), own=own, sizes=rules.sizes)
        offers += [straight, 0.5 * (straight + blends)]
    return keep_largest(np.concatenate(offers), rules.sizes.max_active)


def climbed(rules: Rules, known: Known, x: FloatArray, mixes: FloatArray) -> list[FloatArray]:
    """Every blend (n, K) on the way up the bounds of mixes (n, V) from x (n, K), a few gradient steps."""
    met, beta = [], max(rules.beta(known), 0.0)
    for size in CLIMBS:
        slope = np.concatenate([
            gp.slope_of_bound(rules.prior, known.posterior, blend[None], mix, beta)
            for blend, mix in zip(x, mixes, strict=True)
        ])  # fmt: skip
        slope -= slope.mean(axis=1, keepdims=True)
        slope *= size / np.maximum(np.sqrt((slope * slope).sum(axis=1, keepdims=True)), 1e-12)
        x = np.maximum(x + slope, 0.0)
        x = keep_largest(x / x.sum(axis=1, keepdims=True), rules.sizes.max_active)
        met.append(x)
    return met


def snapped(rules: Rules, known: Known, blend: Blend) -> Blend:
    """Play a blend near a known arm as that arm: its rewards are pooled, and nothing is merged for a hair's breadth."""
    arm, away = known.posterior.nearest(blend)
    near = away < SNAP and np.count_nonzero(known.posterior.arms[arm]) <= rules.sizes.max_active
    return known.posterior.arms[arm] if near else blend
