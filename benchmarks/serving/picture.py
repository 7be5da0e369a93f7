"""The picture of `serve.json`: texts a second of every server, by size and kind of request."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

KINDS = ("requests of 32, texts_per_second", "single texts, texts_per_second")
OURS, THEIRS = "#1f5fa8", "#b8bec6"


def draw(sections: dict[str, Any], path: Path) -> None:
    """Draw one bar a server, with the range over rounds; nothing without a throughput."""
    sizes = [name for name in ("throughput minilm", "throughput base", "throughput quick") if name in sections]
    if not sizes:
        return
    figure, axes = plt.subplots(len(sizes), len(KINDS), figsize=(11, 1 + 2.6 * len(sizes)), squeeze=False)
    for row, size in zip(axes, sizes, strict=True):
        for axis, kind in zip(row, KINDS, strict=True):
            found = {name: one for name, one in sections[size][kind].items() if "over" not in name}
            names = sorted(found, key=lambda name: found[name]["median"])
            for place, name in enumerate(names):
                one = found[name]
                axis.barh(place, one["median"], color=OURS if name.startswith("tanbr") else THEIRS)
                axis.plot([one["least"], one["most"]], [place, place], color="black", linewidth=1)
                axis.text(one["most"], place, f"  {one['median']:.0f}", va="center", fontsize=8)
            axis.set_yticks(range(len(names)), names, fontsize=8)
            axis.margins(x=0.14)
            axis.set_title(f"{size.partition(' ')[2]}: {kind.partition(',')[0]}, texts a second", fontsize=10)
            axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
