"""The pictures of docs/monitor.md."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def draw(results: dict[str, Any], tasks: Sequence[str], folder: Path) -> None:
    """Draw the mix through its switches, and the errors of the methods."""
    folder.mkdir(parents=True, exist_ok=True)
    colours = plt.get_cmap("tab10").colors[: len(tasks)]
    figure, axes = plt.subplots(3, 1, figsize=(9, 7), sharex=True, constrained_layout=True)
    run = results["run"]
    rows = {
        "true mix": run["mix"],
        "estimate of the slot": run["estimate"],
        "forecast made before the slot": run["forecast"],
    }
    for axis, (title, values) in zip(axes, rows.items(), strict=True):
        values = np.asarray(values)
        if title.startswith("forecast"):
            values = np.vstack([np.full((1, len(tasks)), 1 / len(tasks)), values[:-1]])
        axis.stackplot(np.arange(len(values)) + 0.5, values.T, colors=colours, labels=tasks, step="mid")
        axis.set(title=title, ylim=(0, 1), ylabel="share")
        axis.margins(x=0)
    axes[-1].set_xlabel("slot (256 requests each, none of them tagged)")
    axes[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    figure.savefig(folder / "switch.png", dpi=130)
    plt.close(figure)

    figure, axis = plt.subplots(figsize=(9, 5.5), constrained_layout=True)
    tables = {
        key: table for key, table in results["mix"].items() if any("argmax" in name and "LR" in name for name in table)
    }
    names = sorted(next(iter(tables.values())), key=lambda name: -next(iter(tables.values()))[name]["mean"])
    for offset, (key, table) in zip((0.2, -0.2), tables.items(), strict=False):
        present = [name for name in names if name in table]
        places = [names.index(name) + offset for name in present]
        colour = "tab:blue" if offset > 0 else "tab:orange"
        spreads = [2 * table[name]["standard_error"] for name in present]
        axis.barh(places, [table[name]["mean"] for name in present], 0.38, xerr=spreads, color=colour, label=key)
    axis.set_yticks(range(len(names)), names)
    axis.set_xlabel("mean L1 error of a slot's mix (bars: two standard errors); less is better")
    axis.legend(frameon=False)
    figure.savefig(folder / "error.png", dpi=130)
    plt.close(figure)
