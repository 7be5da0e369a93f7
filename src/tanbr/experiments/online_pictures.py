"""Pictures of a simulation: several seeds, many methods."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tanbr.experiments.pictures import PALETTE, figure, smooth, styled
from tanbr.experiments.standings import Standings

BROAD = (*PALETTE, "#1b1b1b", "#a0522d", "#5f9ea0", "#c0c000", "#d8a0d8", "#2f4f2f", "#ff7f50")


def _lines(standings: Standings) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give each method its line: the first thick, bounds dashed."""
    for i, method in enumerate(standings.methods):
        style = "--" if method in (standings.best, "tags") else "-"
        yield method, {"color": BROAD[i % len(BROAD)], "lw": 2.2 if i == 0 else 1.2, "ls": style, "label": method}


@styled
def rewards(standings: Standings, *, window: int = 20) -> Figure:
    """Draw each method's reward so far and of the last `window` slots, averaged over the seeds."""
    canvas, (so_far, recent) = figure(height=6.0, rows=2)
    for method, line in _lines(standings):
        reward = np.mean(standings.rewards(method), axis=0)
        so_far.plot(np.cumsum(reward) / np.arange(1, len(reward) + 1), **line)
        recent.plot(smooth(reward, window), **{**line, "label": None})
    seeds = len(standings.comparisons)
    so_far.set(title=f"Online reward: mean of all slots so far ({seeds} seeds)")
    recent.set(title=f"Performance by slot: mean of the last {window} slots", xlabel="slot")
    canvas.legend(loc="outside right center", fontsize=8)
    return canvas


@styled
def regret(standings: Standings) -> Figure:
    """Draw each method's cumulative regret: the mean over the seeds, and the first method's range."""
    canvas, (axis,) = figure(height=3.6)
    for method, line in _lines(standings):
        if method != standings.best:
            series = np.array([c.regret(method) for c in standings.comparisons.values()])
            axis.plot(series.mean(axis=0), **line)
            if method == standings.subject:
                axis.fill_between(
                    range(series.shape[1]), series.min(0), series.max(0), color=line["color"], alpha=0.15, lw=0
                )
    axis.axhline(0, color="#999999", lw=0.6)
    axis.set(title=f"Cumulative regret against “{standings.best}” (mean over seeds)", xlabel="slot")
    canvas.legend(loc="outside right center", fontsize=8)
    return canvas


@styled
def lead_by_slot(standings: Standings, *, window: int = 20) -> Figure:
    """Draw, seed by seed, the first method's points above every method that does not learn."""
    still = ("average", "best-fixed", "fisher", "regmean", standings.best)
    rivals = [method for method in standings.methods[1:] if method in still] or standings.methods[1:]
    seeds = list(standings.comparisons)
    canvas, axes = figure(height=1.9 * len(seeds) + 0.4, rows=len(seeds))
    lines = dict(_lines(standings))
    for axis, seed in zip(axes, seeds, strict=True):
        comparison = standings.comparisons[seed]
        for rival in rivals:
            lead = comparison.rewards(standings.subject) - comparison.rewards(rival)
            label = rival if seed == seeds[0] else None
            axis.plot(100 * smooth(lead, window), **{**lines[rival], "label": label})
        axis.axhline(0, color="#999999", lw=0.6)
        axis.set(title=f"Points of {standings.subject} above a rival, last {window} slots (seed {seed})")
    axes[-1].set_xlabel("slot")
    canvas.legend(loc="outside right center", fontsize=8)
    return canvas


@styled
def task_figures(standings: Standings) -> Figure:
    """Draw a table of the tasks' own metrics, method by method; the darker, the better within its task."""
    table = 100 * np.array([standings.figures(method) for method in standings.methods])
    low, high = np.nanmin(table, axis=0), np.nanmax(table, axis=0)
    shade = (table - low) / np.where(high > low, high - low, 1.0)
    canvas, (axis,) = figure(height=0.32 * len(table) + 1.0)
    axis.imshow(shade, cmap="Blues", vmin=0, vmax=1.4, aspect="auto")
    for (i, v), value in np.ndenumerate(table):
        axis.text(v, i, "–" if np.isnan(value) else f"{value:.1f}", ha="center", va="center", fontsize=8)
    axis.set(title="The tasks' own metrics over all answers, in points")
    axis.set_xticks(range(table.shape[1]), standings.tasks)
    axis.set_yticks(range(len(table)), standings.methods)
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    return canvas
