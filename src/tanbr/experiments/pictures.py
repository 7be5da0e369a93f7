"""Pictures of a comparison, as SVG that stands inside a page or PNG that stands beside it."""

import io
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tanbr.experiments.compare import Comparison
from tanbr.router import TreeView
from tanbr.types import FloatArray

P = ParamSpec("P")
R = TypeVar("R")

PALETTE = (
    "#4053d3",
    "#ddb310",
    "#b51d14",
    "#00beff",
    "#fb49b0",
    "#00b25d",
    "#8c6bb1",
    "#7f7f7f",
)  # apart for most eyes
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "font.size": 9,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "tanbr",  # the same picture has the same bytes
}


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Draw in our style, whatever matplotlib is set to elsewhere."""

    @wraps(draw)
    def in_style(*args: P.args, **kwargs: P.kwargs) -> R:
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return in_style


def figure(width: float = 8.0, height: float = 2.6, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Lay out `rows` axes that share their x axis."""
    canvas = Figure(figsize=(width, height), layout="constrained")
    return canvas, list(canvas.subplots(rows, 1, sharex=True, squeeze=False)[:, 0])


@styled
def svg(canvas: Figure) -> str:
    """Render as an <svg> element."""
    buffer = io.StringIO()
    canvas.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


@styled
def png(canvas: Figure, path: Path) -> None:
    """Render into a file."""
    canvas.savefig(path, dpi=140)


def smooth(values: FloatArray, window: int) -> FloatArray:
    """Average each value with up to `window` − 1 before it (T,)."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)


@styled
def shares(series: Sequence[tuple[str, FloatArray]], names: Sequence[str]) -> Figure:
    """Stack shares (T, n) that sum to 1, one panel per (title, series)."""
    canvas, axes = figure(height=1.9 * len(series) + 0.3, rows=len(series))
    colours = [PALETTE[i % len(PALETTE)] for i in range(len(names))]
    for axis, (title, values) in zip(axes, series, strict=True):
        axis.stackplot(range(len(values)), values.T, colors=colours, step="mid", linewidth=0)
        axis.set(title=title, ylim=(0, 1), xlim=(0, max(1, len(values) - 1)), yticks=(0, 0.5, 1))
    axes[-1].set_xlabel("slot")
    handles = [Patch(color=colour, label=name) for colour, name in zip(colours, names, strict=True)]
    canvas.legend(handles=handles, loc="outside right center", fontsize=8)
    return canvas


@styled
def rewards(result: Comparison, *, window: int = 20) -> Figure:
    """Draw each method's reward, averaged over `window` slots."""
    canvas, (axis,) = figure(height=3.0)
    for (method, colour), weight in zip(_coloured(result), _weights(result), strict=True):
        axis.plot(smooth(result.rewards(method), window), color=colour, lw=weight, label=method)
    axis.set(title=f"Reward (mean of the last {window} slots)", xlabel="slot", xlim=(0, len(result.mixes) - 1))
    canvas.legend(loc="outside right center", fontsize=8)
    return canvas


@styled
def regret(result: Comparison) -> Figure:
    """Draw each method's cumulative regret against the best blend per slot."""
    canvas, (axis,) = figure(height=3.0)
    for (method, colour), weight in zip(_coloured(result), _weights(result), strict=True):
        if method != result.best:
            axis.plot(result.regret(method), color=colour, lw=weight, label=method)
    axis.set(title=f"Cumulative regret against “{result.best}”", xlabel="slot", xlim=(0, len(result.mixes) - 1))
    canvas.legend(loc="outside right center", fontsize=8)
    return canvas


@styled
def tree(view: TreeView, experts: Sequence[str]) -> Figure:
    """Draw the router's tree: a node stands at its depth, as large as its visits, coloured by its largest expert."""
    canvas, (axis,) = figure(height=3.4)
    across = _across(view)
    for node in range(1, len(view)):
        parent = int(view.parent[node])
        axis.plot(
            [across[parent], across[node]], [view.depth[parent], view.depth[node]], color="#cccccc", lw=0.5, zorder=1
        )
    leading = view.blend.argmax(axis=1)
    colours = [PALETTE[k % len(PALETTE)] for k in leading]
    axis.scatter(across, view.depth, s=6 + 14 * np.sqrt(view.visits), c=colours, zorder=2, linewidths=0)
    axis.set(title=f"The search tree: {len(view)} nodes", ylabel="depth", xticks=[])
    axis.set_yticks(range(int(view.depth.max()) + 1))
    axis.invert_yaxis()
    axis.spines["bottom"].set_visible(False)
    shown = sorted(set(leading.tolist()))
    handles = [Patch(color=PALETTE[k % len(PALETTE)], label=experts[k]) for k in shown]
    canvas.legend(handles=handles, loc="outside right center", fontsize=8, title="most of it", title_fontsize=8)
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


def _coloured(result: Comparison) -> list[tuple[str, str]]:
    return [(method, PALETTE[i % len(PALETTE)]) for i, method in enumerate(result.records)]


def _weights(result: Comparison) -> list[float]:
    return [2.2 if i == 0 else 1.2 for i in range(len(result.records))]  # the first method is the one that is shown
