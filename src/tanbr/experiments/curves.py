"""The pictures of a training run: losses and held-out figures over its steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context

from tanbr.experiments.pictures import PALETTE, STYLE, figure, png, smooth
from tanbr.train.curve import Curve


@rc_context(STYLE)
def draw_training(curve: Curve, tasks: Sequence[str], path: Path) -> Path:
    """Draw each task's loss, and below it the task's figure on held-out rows where a run looked at it."""
    panels = [("loss", "training loss", 10)]
    if any("figure" in entry for entry in curve.entries()):
        panels.append(("figure", "the task's metric, held-out rows, own expert", 1))
    canvas, axes = figure(height=2.6 * len(panels), rows=len(panels))
    for axis, (kind, title, window) in zip(axes, panels, strict=True):
        for task, colour in zip(tasks, PALETTE, strict=False):
            steps, values = curve.series(kind, task)
            axis.plot(
                steps, smooth(np.array(values), window), color=colour, label=task, marker="." if window == 1 else ""
            )
        axis.set_title(title)
    axes[0].legend(ncols=4)
    axes[-1].set_xlabel("step")
    png(canvas, path)
    return path


@rc_context(STYLE)
def draw_losses(curves: Mapping[str, Curve], path: Path, *, window: int = 5) -> Path:
    """Draw the mean loss of several runs on the same batches, smoothed over `window` entries."""
    canvas, (axis,) = figure(height=3.2)
    for i, (name, curve) in enumerate(curves.items()):
        steps, values = curve.series("loss", "batch")
        dashed = "--" if i >= len(PALETTE) else "-"
        axis.plot(steps, smooth(np.array(values), window), dashed, color=PALETTE[i % len(PALETTE)], label=name)
    axis.set_title("loss of the labelled batches while the normalisation layers are tuned")
    axis.set_xlabel("step")
    axis.legend(ncols=4)
    png(canvas, path)
    return path
