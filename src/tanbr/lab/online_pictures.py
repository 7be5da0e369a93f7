"""Pictures of a simulation: several seeds, many methods."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tanbr.lab.pictures import INK, MOST, figure, lines, name_below, smooth, styled
from tanbr.lab.standings import BOUND, Standings


def shown(standings: Standings) -> list[str]:
    """Choose the methods that are drawn, MOST at the most; tables have all of them.

    The first, its best variant, the best of the others, the average, the bounds; then what earned most.
    """
    everything = sorted(standings.methods, key=lambda method: -standings.reward(method).mean)
    bounds = [method for method in (standings.best, "tags") if method in everything]
    variants = [method for method in everything if method in standings.variants]
    others = [method for method in everything if method not in (*variants, *bounds)]
    wanted = [standings.subject, *variants[:1], *others[:1], *(m for m in others if m == "average"), *bounds]
    return list(dict.fromkeys([*wanted, *others, *variants]))[:MOST]


def _drawn(standings: Standings) -> list[tuple[str, dict[str, Any]]]:
    return list(lines(shown(standings), bounds=(standings.best, "tags")))


@styled
def rewards(standings: Standings, *, window: int = 20) -> Figure:
    """Draw each method's reward so far and of the last `window` slots, averaged over the seeds."""
    canvas, (so_far, recent) = figure(height=5.0, rows=2)
    for method, line in _drawn(standings):
        reward = np.mean(standings.rewards(method), axis=0)
        so_far.plot(np.cumsum(reward) / np.arange(1, len(reward) + 1), **line)
        recent.plot(smooth(reward, window), **{**line, "label": None})
    so_far.set(title=f"Reward, mean of all slots so far (seeds: {len(standings.comparisons)})")
    recent.set(title=f"Reward, mean of the last {window} slots", xlabel="slot")
    name_below(canvas)
    return canvas


@styled
def regret(standings: Standings) -> Figure:
    """Draw each method's cumulative regret: the mean over the seeds, and the first method's range."""
    canvas, (axis,) = figure(height=3.4)
    for method, line in _drawn(standings):
        if method != standings.best:
            series = np.array([c.regret(method) for c in standings.comparisons.values()])
            axis.plot(series.mean(axis=0), **line)
            if method == standings.subject:
                slots = range(series.shape[1])
                axis.fill_between(slots, series.min(0), series.max(0), color=line["color"], alpha=0.15, lw=0)
    axis.axhline(0, color=INK, lw=0.6)
    axis.set(title=f"Cumulative regret against “{standings.best}”, mean over seeds", xlabel="slot")
    name_below(canvas)
    return canvas


@styled
def lead_by_slot(standings: Standings, *, window: int = 20) -> Figure:
    """Draw, seed by seed, the first method's points above the others that are drawn."""
    canvas, axes = figure(height=1.6 * len(standings.comparisons) + 0.8, rows=len(standings.comparisons))
    for axis, (seed, comparison) in zip(axes, standings.comparisons.items(), strict=True):
        for rival, line in _drawn(standings)[1:]:
            lead = comparison.rewards(standings.subject) - comparison.rewards(rival)
            axis.plot(100 * smooth(lead, window), **{**line, "label": rival if axis is axes[0] else None})
        axis.axhline(0, color=INK, lw=0.6)
        axis.set_title(f"Points of {standings.subject} above a rival, seed {seed}")
    axes[-1].set_xlabel(f"slot (means of the last {window})")
    name_below(canvas)
    return canvas


@styled
def dial(standings: Standings, memory: Callable[[int], float]) -> Figure:
    """Draw reward against memory (MB of so many models), from one dense model to the un-merged MoE.

    A line for each method that fills panels, a level for each that does not.
    """
    canvas, (axis,) = figure(height=4.2)
    rows: dict[str, list[str]] = {}
    for method in standings.methods:
        rows.setdefault(re.sub(r"@\d+", "", method), []).append(method)
    several = [name for name, methods in rows.items() if methods != [name]]
    for name, line in lines(several, bounds=[name for name in several if name.startswith(BOUND)]):
        points = sorted(rows[name], key=standings.held)
        rewards = [standings.reward(method) for method in points]
        middle = np.array([one.mean for one in rewards])
        error = np.abs([[one.low for one in rewards], [one.high for one in rewards]] - middle)
        places = [memory(standings.held(method)) for method in points]
        axis.errorbar(places, middle, yerr=error, marker="o", ms=4, capsize=2, **line)
    counts = sorted({standings.held(method) for method in standings.methods})
    alone = {methods[0]: standings.reward(methods[0]).mean for name, methods in rows.items() if name not in several}
    ends = [
        end for method in standings.methods for end in (standings.reward(method).low, standings.reward(method).high)
    ]
    low, high = min(ends), max(ends)
    axis.set_ylim(low - 0.04 * (high - low), high + 0.06 * (high - low))
    end, level = memory(counts[-1]), -np.inf
    for method, reward in sorted(alone.items(), key=lambda item: item[1]):
        held = "" if standings.held(method) == 1 else f" ({standings.held(method)} models)"
        level = max(reward, level + 0.055 * (high - low))  # so that names stand above one another
        axis.axhline(reward, color=INK, lw=0.8, ls=":", zorder=1)
        axis.plot(memory(standings.held(method)), reward, "D", color=INK, ms=4)
        behind = {"facecolor": "white", "linewidth": 0, "pad": 0.8}
        axis.text(
            end - 0.02 * (end - memory(1)), level, f"{method}{held}", ha="right", va="bottom", fontsize=8.5, bbox=behind
        )
    axis.set_xticks([memory(count) for count in counts], [f"{count}\n{memory(count):.3g}" for count in counts])
    axis.set(title="Reward against memory, 95% intervals", xlabel="models held, and their MB in float32")
    name_below(canvas)
    return canvas


@styled
def task_figures(standings: Standings) -> Figure:
    """Draw a table of the tasks' own metrics, method by method; the darker, the better within its task."""
    table = 100 * np.array([standings.figures(method) for method in standings.methods])
    low, high = np.nan_to_num(table, nan=np.inf).min(axis=0), np.nan_to_num(table, nan=-np.inf).max(axis=0)
    shade = (table - low) / np.where(high > low, high - low, 1.0)
    canvas, (axis,) = figure(height=0.28 * len(table) + 1.4)
    axis.imshow(np.nan_to_num(shade), cmap="Blues", vmin=0, vmax=2, aspect="auto")
    for (i, v), value in np.ndenumerate(table):
        word = "–" if np.isnan(value) else f"{value:.0f}"
        axis.text(v, i, word, ha="center", va="center", fontsize=8, color="black")
    axis.set(title="The tasks' own metrics, in points")
    axis.set_xticks(range(table.shape[1]), standings.tasks, rotation=40, ha="right")
    axis.set_yticks(range(len(table)), standings.methods)
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    return canvas
