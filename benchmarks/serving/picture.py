"""The side-by-side table as a picture: texts a second of every way of serving, over the best rival's in its round."""

import statistics
from pathlib import Path
from typing import Any

COLOURS = {"tanbr": "#1b6ca8", "plain": "#c77d2e", "litserve": "#7a9a52", "bare": "#8c8c8c"}


def draw(sections: dict[str, Any], path: Path) -> None:
    """Draw a row of bars for each size and load that was measured: medians, and ranges over the rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found = [
        (f"{section['size']}, {load}", [one[load] for one in section["texts_per_second"] if load in one])
        for name, section in sections.items()
        if name.startswith("throughput") and section.get("texts_per_second")
        for load in section["texts_per_second"][0]
    ]
    if not found:
        return
    figure, axes = plt.subplots(len(found), 1, figsize=(8, 1.6 * len(found)), sharex=True, squeeze=False)
    for axis, (title, rounds) in zip(axes[:, 0], found, strict=True):
        names = list(dict.fromkeys(name for one in rounds for name in one))
        shares = {
            name: [
                one[name] / max(rate for rival, rate in one.items() if not rival.startswith("tanbr"))
                for one in rounds
                if name in one
            ]
            for name in names
        }
        for place, (name, values) in enumerate(shares.items()):
            middle = statistics.median(values)
            colour = next(colour for kind, colour in COLOURS.items() if name.startswith(kind))
            axis.barh(place, middle, color=colour, height=0.7)
            axis.plot([min(values), max(values)], [place, place], color="black", linewidth=1)
            axis.text(0.01, place, f"{middle:.2f}", va="center", color="white", fontsize=8)
        axis.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
        axis.set_yticks(range(len(shares)), list(shares), fontsize=8)
        axis.invert_yaxis()
        axis.set_title(f"{title} ({len(rounds)} rounds)", fontsize=9, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("texts a second, of the best rival in the same round", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
