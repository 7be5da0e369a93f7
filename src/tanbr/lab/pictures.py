"""Pictures of a comparison, as SVG that stands inside a page or PNG that stands beside it."""

import io
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tanbr.lab.compare import Comparison
from tanbr.router import TreeView
from tanbr.types import FloatArray

P = ParamSpec("P")
R = TypeVar("R")

LINES = ("#4169f5", "#d1495b", "#2a9d4b", "#e07b00", "#8a4fbf", "#0a9396")  # methods; no picture has more lines
AREAS = ("#8dd3c7", "#f6d55c", "#bebada", "#fb8072", "#80b1d3", "#fdb462", "#b3de69", "#fccde5")  # tasks and experts
MOST = len(LINES)
LONG = 18  # letters of a name of which three do not fit on a line
INK = "#454b58"  # axes and words; in a page they take its own colour
STYLE = {
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
}


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Draw in our style, whatever matplotlib is set to elsewhere."""

    @wraps(draw)
    def in_style(*args: P.args, **kwargs: P.kwargs) -> R:
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return in_style


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


@styled
def svg(canvas: Figure) -> str:
    """Render as an <svg> element without a background, whose words and axes have the page's own colour."""
    buffer = io.StringIO()
    canvas.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    text = buffer.getvalue()
    return text[text.index("<svg") :].replace(INK, "currentColor")


@styled
def png(canvas: Figure, path: Path) -> None:
    """Render into a file."""
    canvas.savefig(path, dpi=200)


def smooth(values: FloatArray, window: int) -> FloatArray:
    """Average each value with up to `window` − 1 before it (T,)."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)


@styled
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


@styled
def rewards(result: Comparison, *, window: int = 20) -> Figure:
    """Draw each method's reward, averaged over `window` slots."""
    canvas, (axis,) = figure(height=3.0)
    for method, line in lines(list(result.records), bounds=(result.best,)):
        axis.plot(smooth(result.rewards(method), window), **line)
    axis.set(title=f"Reward, mean of the last {window} slots", xlabel="slot")
    name_below(canvas)
    return canvas


@styled
def regret(result: Comparison) -> Figure:
    """Draw each method's cumulative regret against the best blend per slot."""
    canvas, (axis,) = figure(height=3.0)
    for method, line in lines(list(result.records)):
        if method != result.best:
            axis.plot(result.regret(method), **line)
    axis.set(title=f"Cumulative regret against “{result.best}”", xlabel="slot")
    name_below(canvas)
    return canvas


def lines(methods: Sequence[str], *, bounds: Collection[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give each of the first MOST methods its line: the very first thick, bounds dashed."""
    for i, (method, colour) in enumerate(zip(methods, LINES, strict=False)):
        style = {"color": colour, "lw": 2.2 if i == 0 else 1.2, "ls": "--" if method in bounds else "-"}
        yield method, {**style, "label": method}


@styled
def tree(view: TreeView, experts: Sequence[str]) -> Figure:
    """Draw the router's tree: a node stands at its depth, as large as its visits, coloured by its largest expert."""
    canvas, (axis,) = figure(height=3.4)
    across = _across(view)
    for node in range(1, len(view)):
        parent = int(view.parent[node])
        axis.plot(
            [across[parent], across[node]],
            [view.depth[parent], view.depth[node]],
            color=INK,
            alpha=0.5,
            lw=0.5,
            zorder=1,
        )
    leading = view.blend.argmax(axis=1)
    colours = [AREAS[k % len(AREAS)] for k in leading]
    axis.scatter(across, view.depth, s=6 + 14 * np.sqrt(view.visits), c=colours, zorder=2, linewidths=0)
    axis.set(title=f"The search tree: {len(view)} blends, by the expert they hold most of", ylabel="depth", xticks=[])
    axis.set_yticks(range(int(view.depth.max()) + 1))
    axis.invert_yaxis()
    axis.spines["bottom"].set_visible(False)
    shown = sorted(set(leading.tolist()))
    handles = [Patch(color=AREAS[k % len(AREAS)], label=experts[k]) for k in shown]
    name_below(canvas, handles=handles)
    return canvas


def _across(view: TreeView) -> FloatArray:
    """Give each node a place from left to right (n,): leaves evenly, parents amid their children."""
    children: list[list[int]] = [[] for _ in range(len(view))]
    for node in range(1, len(view)):
        children[int(view.parent[node])].append(node)
    place = np.zeros(len(view))
    order, stack, leaves = [], [0], 0
    while stack:
        node = stack.pop()
        order.append(node)
        stack.extend(reversed(children[node]))
    for node in order:
        if not children[node]:
            place[node], leaves = leaves, leaves + 1
    for node in reversed(order):
        if children[node]:
            place[node] = place[children[node]].mean()
    return place
