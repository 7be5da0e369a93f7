"""How the default router chooses a panel: from what needs no reward, improved by what rewards have taught."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tanbr.router.config import DefaultModeConfig
from tanbr.router.panel import (
    Candidates,
    Panel,
    Rows,
    chosen,
    exchanged,
    group_mixes,
    panel_of,
    proportional_blends,
    task_groups,
)
from tanbr.router.readings import Readings
from tanbr.router.simplex import keep_largest
from tanbr.router.sizes import Sizes
from tanbr.types import Blend, FloatArray, TaskMix

ROUNDS = 2  # of climbing and exchange after a panel is chosen


class Bounds(Protocol):
    """What a posterior over blends has to offer; `GpTree` is one."""

    sizes: Sizes
    config: DefaultModeConfig
    asked: int  # blends of decisions that were told, and of warm starts
    opening: int  # first asks that try the even blend and single experts

    def candidates(self, mix: TaskMix, open_blends: list[Blend]) -> Candidates:
        """All blends whose posterior is kept; the single experts first, then the even blend."""
        ...

    def bounded(self, blends: FloatArray, mix: TaskMix) -> Candidates:
        """Make candidates of any blends (n, K)."""
        ...

    def climbed(self, x: FloatArray, mix: TaskMix, *, steps: int, size: float) -> list[FloatArray]:
        """Every blend on the way up the bound from x (n, K)."""
        ...


def choose_panel(router: Bounds, readings: Readings, models: int, open_blends: list[Blend]) -> Panel:
    """Choose G blends jointly, then let each climb for the mix of the requests it receives."""
    config, mix, start = router.config, readings.task_mix, None
    found = router.candidates(mix, open_blends)
    if config.own_experts:
        harm = np.array(config.interference) if config.interference else None
        start = len(found.blends) + np.arange(models)
        straight = _proportional(router, readings, task_groups(readings, models, interference=harm), models)
        found = found.joined(router.bounded(straight, mix))
    panel = chosen(found, readings, models, start=start)
    asked = router.asked + len(open_blends)
    if not config.own_experts and asked < router.opening:
        return panel_of(found, _opening(router, panel, asked), readings)
    for _ in range(ROUNDS):
        found, panel = _improved(router, found, panel, readings)
    return panel_of(found, panel, readings)


def _opening(router: Bounds, panel: Rows, asked: int) -> Rows:
    """Put the blends that every router opens with, as many as are still to come, into a panel."""
    order = [router.sizes.experts, *range(router.sizes.experts)]
    coming = order[asked : min(asked + len(panel), router.opening)]
    return np.array([*coming, *panel[len(coming) :]], dtype=np.intp)


def _improved(router: Bounds, found: Candidates, panel: Rows, readings: Readings) -> tuple[Candidates, Rows]:
    """Offer each model its own tasks' proportional blend, and its own blend moved up its own mix's bound."""
    bound, blends = found.bound[panel], found.blends[panel]
    own = group_mixes(bound, readings)
    config = router.config
    offers = [
        router.climbed(blend[None], psi, steps=config.climbs, size=config.climb_size)[-1]
        for blend, psi in zip(blends, own, strict=True)
    ]
    if router.config.own_experts:
        straight = _proportional(router, readings, readings.bound(bound).argmax(axis=0), len(panel))
        offers += [straight, 0.5 * (straight + blends)]
    found = found.joined(
        router.bounded(keep_largest(np.concatenate(offers), router.sizes.max_active), readings.task_mix)
    )
    return found, exchanged(readings.bound(found.bound), readings.mix, panel)


def _proportional(router: Bounds, readings: Readings, labels: NDArray[np.intp], models: int) -> FloatArray:
    own = list(router.config.own_experts)
    return proportional_blends(readings, labels, models, own=own, sizes=router.sizes)
