"""Pictures of comparisons and training runs, as SVG that stands inside a page or PNG that stands beside it."""

import io
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tanbr.lab.standings import BOUND, Standings
from tanbr.types import FloatArray

LINES = (  # methods; no picture has more lines
    "#4169f5", "#d1495b", "#2a9d4b", "#e07b00", "#8a4fbf", "#0a9396", "#7f5539", "#6c757d",
)  # fmt: skip
AREAS = ("#8dd3c7", "#f6d55c", "#bebada", "#fb8072", "#80b1d3", "#fdb462", "#b3de69", "#fccde5")  # tasks and experts
MOST = len(LINES)
WINDOW = 20  # slots over which a reward is averaged
LONG = 18  # letters of a name of which three do not fit on a line
INK = "#454b58"  # axes and words; in a page they take its own colour
mpl.rcParams.update({  # of the process: nothing else draws in it
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "font.size": 10,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "tanbr",  # the same picture has the same bytes
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
})  # fmt: skip


def figure(height: float = 2.6, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Lay out `rows` axes that share their x axis, as wide as a phone can show without making words small."""
    canvas = Figure(figsize=(5.2, height), layout="constrained")
    return canvas, list(canvas.subplots(rows, 1, sharex=True, squeeze=False)[:, 0])


def name_below(canvas: Figure, **options: Any) -> None:
    """Put the legend under the axes, three names a line, or two if they are long."""
    names = [name for axis in canvas.axes for name in axis.get_legend_handles_labels()[1]]
    if options or names:
        columns = 3 if max(map(len, names), default=0) <= LONG else 2
        canvas.legend(loc="outside lower left", ncols=columns, fontsize=9, columnspacing=1.2, **options)


def svg(canvas: Figure) -> str:
    """Render as an <svg> element without a background, whose words and axes have the page's own colour."""
    buffer = io.StringIO()
    canvas.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    text = buffer.getvalue()
    return text[text.index("<svg") :].replace(INK, "currentColor")


def png(canvas: Figure, path: Path) -> None:
    """Render into a file."""
    canvas.savefig(path, dpi=200)


def smooth(values: FloatArray, window: int) -> FloatArray:
    """Average each value with up to `window` − 1 before it (T,)."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)


def line_chart(series: Mapping[str, tuple[Any, Any]], *, title: str, xlabel: str, **scales: str) -> Figure:
    """Draw a line for each name: its x and y values; `scales` may name yscale and xscale."""
    canvas, (axis,) = figure(height=3.2)
    for name, line in lines(list(series)):
        axis.plot(*series[name], **line)
    axis.set(title=title, xlabel=xlabel, **scales)
    name_below(canvas)
    return canvas


def bar_chart(groups: Mapping[str, Mapping[str, Any]], *, title: str, xlabel: str = "") -> Figure:
    """Draw bars, a group a colour: for each name the mean of its values (one a seed), and the values as dots."""
    names = list(next(iter(groups.values())))
    canvas, (axis,) = figure(height=1.2 + 0.3 * len(names))
    width = 0.8 / len(groups)
    for i, ((label, values), colour) in enumerate(zip(groups.items(), LINES, strict=False)):
        at = np.arange(len(names)) + (i - (len(groups) - 1) / 2) * width
        axis.barh(at, [np.mean(values[name]) for name in names], height=0.9 * width, color=colour, label=label)
        for place, name in zip(at, names, strict=True):
            axis.plot(np.atleast_1d(values[name]), np.full(np.size(values[name]), place), ".", color=INK, ms=3)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set(title=title, xlabel=xlabel)
    name_below(canvas)
    return canvas


def shares(series: Sequence[tuple[str, FloatArray]], names: Sequence[str]) -> Figure:
    """Stack shares (T, n) that sum to 1, one panel per (title, series)."""
    canvas, axes = figure(height=1.6 * len(series) + 0.3 + 0.2 * -(-len(names) // 3), rows=len(series))
    colours = [AREAS[i % len(AREAS)] for i in range(len(names))]
    for axis, (title, values) in zip(axes, series, strict=True):
        axis.stackplot(range(len(values)), values.T, colors=colours, step="mid", linewidth=0)
        axis.set(title=title, ylim=(0, 1), xlim=(0, max(1, len(values) - 1)), yticks=(0, 0.5, 1))
    axes[-1].set_xlabel("slot")
    name_below(canvas, handles=[Patch(color=colour, label=name) for colour, name in zip(colours, names, strict=True)])
    return canvas


def rewards(standings: Standings) -> Figure:
    """Draw methods' rewards so far and of the last WINDOW slots, averaged over the seeds."""
    canvas, (so_far, recent) = figure(height=5.0, rows=2)
    for method, line in lines(shown(standings), bounds=(standings.best, "tags")):
        reward = np.mean(standings.rewards(method), axis=0)
        so_far.plot(np.cumsum(reward) / np.arange(1, len(reward) + 1), **line)
        recent.plot(smooth(reward, WINDOW), **{**line, "label": None})
    so_far.set(title=f"Reward, mean of all slots so far (seeds: {len(standings.mixes)})")
    recent.set(title=f"Reward, mean of the last {WINDOW} slots", xlabel="slot")
    name_below(canvas)
    return canvas


def regret(standings: Standings) -> Figure:
    """Draw methods' cumulative regret: the mean over the seeds, and the first method's range."""
    canvas, (axis,) = figure(height=3.4)
    for method, line in lines(shown(standings), bounds=("tags",)):
        if method != standings.best:
            series = np.array(standings.regret(method))
            axis.plot(series.mean(axis=0), **line)
            if method == standings.subject:
                slots = range(series.shape[1])
                axis.fill_between(slots, series.min(0), series.max(0), color=line["color"], alpha=0.15, lw=0)
    axis.axhline(0, color=INK, lw=0.6)
    axis.set(title=f"Cumulative regret against “{standings.best}”", xlabel="slot")
    name_below(canvas)
    return canvas


def shown(standings: Standings) -> list[str]:
    """Choose the methods to draw: the first, its best variant, the best other, the average, bounds; then by reward."""
    everything = sorted(standings.methods, key=lambda method: -standings.reward(method).mean)
    bounds = [method for method in (standings.best, "tags") if method in everything]
    variants = [method for method in everything if method in standings.variants]
    others = [method for method in everything if method not in (*variants, *bounds)]
    wanted = [standings.subject, *variants[:1], *others[:1], *(m for m in others if m == "average"), *bounds]
    return list(dict.fromkeys([*wanted, *others, *variants]))[:MOST]


def dial(standings: Standings) -> Figure:
    """Draw reward against the number of models held: a line for each that fills panels, a point for each other."""
    rows: dict[str, list[str]] = {}
    for method in standings.methods:
        rows.setdefault(re.sub(r"@\d+", "", method), []).append(method)
    canvas, (axis,) = figure(height=4.2)
    for name, line in lines(list(rows), bounds=[name for name in rows if name.startswith(BOUND)]):
        points = sorted(rows[name], key=standings.held)
        rewards = [standings.reward(method) for method in points]
        middle = np.array([one.mean for one in rewards])
        error = np.abs([[one.low for one in rewards], [one.high for one in rewards]] - middle)
        axis.errorbar([*map(standings.held, points)], middle, yerr=error, marker="o", ms=4, capsize=2, **line)
    axis.set(title="Reward against memory, 95% intervals", xlabel="models held")
    name_below(canvas)
    return canvas


def lines(methods: Sequence[str], *, bounds: Collection[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give each of the first MOST methods its line: the very first thick, bounds dashed."""
    for i, (method, colour) in enumerate(zip(methods, LINES, strict=False)):
        style = {"color": colour, "lw": 2.2 if i == 0 else 1.2, "ls": "--" if method in bounds else "-"}
        yield method, {**style, "label": method}


def draw_losses(runs: Mapping[str, tuple[Sequence[int], Sequence[float]]], path: Path) -> Path:
    """Draw training losses by name, steps and values, each value averaged with some before it."""
    smoothed = {name: (steps, smooth(np.array(values), 10)) for name, (steps, values) in runs.items()}
    png(line_chart(smoothed, title="Training loss", xlabel="step"), path)
    return path
