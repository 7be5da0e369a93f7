"""The pictures of a training run: losses and held-out figures over its steps, at most six lines in one plot."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tanbr.lab.pictures import LINES, MOST, figure, png, smooth, styled
from tanbr.lab.train.curve import Curve


@styled
def draw_training(curve: Curve, tasks: Sequence[str], path: Path) -> Path:
    """Draw each task's loss, and below it the task's figure on held-out rows where a run looked at it."""
    kinds = [("loss", "training loss", 10)]
    if any("figure" in entry for entry in curve.entries()):
        kinds.append(("figure", "metric on held-out rows, own expert", 1))
    panels = [(kind, few) for kind in kinds for few in _in_sixes(tasks)]
    canvas, axes = figure(height=2.2 * len(panels), rows=len(panels))
    for axis, ((kind, title, window), few) in zip(axes, panels, strict=True):
        for task, colour in zip(few, LINES, strict=False):
            steps, values = curve.series(kind, task)
            marker = "." if window == 1 else ""
            axis.plot(steps, smooth(np.array(values), window), color=colour, label=task, marker=marker)
        axis.set_title(title)
        axis.legend(ncols=2, fontsize=8)
    axes[-1].set_xlabel("step")
    png(canvas, path)
    return path


@styled
def draw_losses(curves: Mapping[str, Curve], path: Path, *, window: int = 5) -> Path:
    """Draw the mean loss of several runs on the same batches, smoothed over `window` entries."""
    panels = _in_sixes(list(curves))
    canvas, axes = figure(height=2.6 * len(panels), rows=len(panels))
    for axis, few in zip(axes, panels, strict=True):
        for name, colour in zip(few, LINES, strict=False):
            steps, values = curves[name].series("loss", "batch")
            axis.plot(steps, smooth(np.array(values), window), color=colour, label=name)
        axis.legend(ncols=2, fontsize=8)
    axes[0].set_title("loss of the labelled batches while norms are tuned")
    axes[-1].set_xlabel("step")
    png(canvas, path)
    return path


def _in_sixes(names: Sequence[str]) -> list[Sequence[str]]:
    """Split names into parts of like size, none of more than can be told apart."""
    parts = max(1, -(-len(names) // MOST))
    size = -(-len(names) // parts)
    return [names[start : start + size] for start in range(0, len(names), size)] or [names]
