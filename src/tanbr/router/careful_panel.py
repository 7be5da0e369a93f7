"""Panels under the conservative rule: what a panel may cost is held against the baseline's own panel.

The baseline panel B parts the tasks into groups by the mix and gives every group its tasks' own experts by their shares
(or G times the baseline blend, where that is one blend). A panel x sends what is read as u (`readings.py`) to its model
g(u) of highest bound, B to the model h(u) of its group. So the gain is Σ_u m_u Σ_v P_uv (f_v(x_g(u)) − f_v(b_h(u))),
linear in what is expected of pairs of blends: a slot is entered in the ledger as one row a pair, each with the mix of
tasks that it receives.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tanbr.router.argmax import first_best
from tanbr.router.config import DefaultModeConfig
from tanbr.router.conservative import SHRINK, STEP, Careful, baseline_of, waiting_charge
from tanbr.router.ledger import Entry
from tanbr.router.panel import Panel, panel_of, proportional_blends, task_groups, worth
from tanbr.router.readings import Readings
from tanbr.router.records import Open
from tanbr.router.sizes import Sizes
from tanbr.types import FloatArray


class Grouped(NamedTuple):
    """A panel that needs no reward."""

    blends: FloatArray  # (G, K)
    home: NDArray[np.intp]  # (V,) the model of what is read as each task


def baseline_panel(config: DefaultModeConfig, sizes: Sizes, readings: Readings, models: int) -> Grouped:
    """Give the G blends that need no reward, for a mix as it is read."""
    mix = readings.task_mix
    if config.baseline != "proportional":
        return Grouped(np.tile(baseline_of(config, sizes, mix), (models, 1)), np.zeros(len(mix), dtype=np.intp))
    harm = np.array(config.interference) if config.interference else None
    home = task_groups(readings, models, interference=harm)
    own = list(config.own_experts)
    return Grouped(proportional_blends(readings, home, models, own=own, sizes=sizes), home)


def entries(router: Careful, readings: Readings, panel: Panel) -> list[Entry]:
    """Make the ledger's rows of a told panel."""
    base = baseline_panel(router.config, router.sizes, readings, len(panel.blends))
    goes = readings.bound(panel.estimates).argmax(axis=0)
    pairs = sorted(set(zip(goes.tolist(), base.home.tolist(), strict=True)))
    received = readings.received(np.array([(goes == g) & (base.home == h) for g, h in pairs]))
    return [(own, panel.blends[g], base.blends[h]) for own, (g, h) in zip(received, pairs, strict=True)]


def careful_panel(router: Careful, readings: Readings, wanted: Panel, open_slots: list[Open]) -> Panel:
    """Take the panel of highest worth that the balance pays for: of the wanted, the served, steps from the baseline."""
    config, pool, ledger, models = router.config, router.posterior, router.ledger, len(wanted.blends)
    base, mix = baseline_panel(config, router.sizes, readings, models), readings.mix
    served = ledger.serving(open_slots)
    served = served if len(served) == models else base.blends
    panels = np.array([base.blends, served, wanted.blends, *_steps(router, readings, base)])  # (P, G, K)
    flat = panels.reshape(-1, panels.shape[2])
    found, (mean, gain), kernel = router.bounded(flat, readings.task_mix), pool.at(flat), pool.kernel(flat)
    of_tasks, shape = found.bound.reshape(*panels.shape[:2], -1), panels.shape[:2]  # (P, G, V)
    bounds = readings.bound(of_tasks)  # of readings
    bounds[0] = _at_home(bounds[0], base.home)
    goes = bounds.argmax(axis=1)  # (P, V)
    means = readings.bound(mean).reshape(bounds.shape)
    expected = (np.take_along_axis(means, goes[:, None], axis=1)[:, 0] * mix).sum(axis=1)  # (P,)
    unlike = np.zeros((len(panels), len(mix)))  # most variance of each reading's difference to the baseline panel
    for model in range(models):
        apart = pool.contrast(flat, kernel, gain, base.blends[model])
        apart = readings.bound(np.broadcast_to(apart, (len(flat), len(mix)))).reshape(bounds.shape)
        here = np.take_along_axis(apart, goes[:, None], axis=1)[:, 0]
        unlike[:, base.home == model] = here[:, base.home == model]
    least = expected - expected[0] - config.doubt * np.sqrt(pool.mixed_variance(mix, unlike))
    least[0] = 0.0
    balance = ledger.gain(pool.mean_at) + config.budget * (ledger.earned + max(float(expected[0]), 0.0))
    balance += waiting_charge(open_slots)
    value = np.array([worth(bound, mix) for bound in bounds])
    value[least < -balance] = -np.inf
    value[0] = worth(bounds[0], mix)
    if config.budget == 0:
        value[1:] = -np.inf
    best = first_best(value)
    if value[1] >= value[best] - config.margin and best > 1:
        best = 1
    rows = np.arange(shape[1]) + best * shape[1]
    panel = panel_of(found, rows, readings)
    if best == 0:  # requests go home: assignment is by tasks
        panel = replace(panel, estimates=_at_home(of_tasks[0], base.home))
    base_reward, charge = float(expected[0]), float(least[best])
    why = (replace(t, baseline=base_reward, least_gain=charge, balance=float(balance)) for t in panel.terms)
    return replace(panel, terms=tuple(why))


def _steps(router: Careful, readings: Readings, base: Grouped) -> list[FloatArray]:
    """Baseline panels whose models have all moved up the bound of their own tasks, by one step, two, and so on."""
    ways = []
    for model, blend in enumerate(base.blends):
        own = readings.received((base.home == model)[None])[0]
        own = own / own.sum() if own.any() else readings.task_mix
        ways.append(router.climbed(blend[None], own, steps=router.config.steps, size=STEP, shrink=SHRINK))
    return [np.concatenate(step) for step in zip(*ways, strict=True)]


def _at_home(bound: FloatArray, home: NDArray[np.intp]) -> FloatArray:
    """Lower the bounds (G, V) of other models than a task's own below that one's."""
    own = bound[home, np.arange(len(home))]
    away = np.arange(len(bound))[:, None] != home
    return np.where(away, np.minimum(bound, own - 1e-6), bound)
