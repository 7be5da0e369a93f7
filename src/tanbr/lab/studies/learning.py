"""What learning earned, from folders that `tanbr simulate` wrote: figures by seed in one file, and one picture.

    python -m tanbr.lab.studies.learning out/a out/b --json learning.json
    python -m tanbr.lab.studies.learning out/a --json a.json --picture a.png --above tanbr=out/a:tanbr --below …

`--above` and `--below` name the lines of the picture's two parts, label=folder:method; the first of each is what all
others are compared with.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from tanbr.files import write_atomically
from tanbr.lab.pictures import figure, lines, name_below, png, smooth
from tanbr.lab.simulate import earned
from tanbr.types import FloatArray

FIRST, SETTLED, WINDOW = 20, 30, 20  # slots: the first, from which on, and over which a line is averaged


def rewards(folder: Path) -> dict[str, dict[int, FloatArray]]:
    """Each method's reward per slot (T,), by seed."""
    found: dict[str, dict[int, FloatArray]] = {}
    for path in sorted(folder.glob("runs/*.json")):
        seed, method = path.stem.removeprefix("seed").split("-", 1)
        slots = json.loads(path.read_text(encoding="utf-8"))["result"]["slots"]
        found.setdefault(method, {})[int(seed)] = earned(slots)
    return found


def figures(folder: Path) -> dict[str, Any]:
    """Say by what command a folder was made, of which model, and what each method earned with each seed."""
    about = json.loads((folder / "simulate.json").read_text(encoding="utf-8"))
    means = {
        method: {
            f"seed{seed}": {
                "all": round(float(slots.mean()), 4),
                f"from slot {SETTLED}": round(float(slots[SETTLED:].mean()), 4),
                f"first {FIRST}": round(float(slots[:FIRST].mean()), 4),
            }
            for seed, slots in sorted(of.items())
        }
        for method, of in rewards(folder).items()
    }
    return {"command": about["command"], "model_sha256": about["facts"]["model_sha256"], "rewards": means}


def draw(above: list[str], below: list[str], path: Path) -> None:
    """Draw both parts: points above the part's first line in the last slots, averaged over the seeds."""
    canvas, axes = figure(height=5.6, rows=2)
    places = [[line.partition("=")[::2] for line in part] for part in (above, below)]
    styles = dict(lines(list(dict.fromkeys(label for part in places for label, _ in part))))
    for axis, part in zip(axes, places, strict=True):
        first = np.zeros(0)
        for label, place in part:
            folder, _, method = place.rpartition(":")
            mean = np.mean(list(rewards(Path(folder))[method].values()), axis=0)
            first = mean if label == part[0][0] else first
            axis.plot(100 * smooth(mean - first, WINDOW), **styles[label])
            styles[label]["label"] = None  # once in the legend
    axes[0].set(title=f"Points above “{places[0][0][0]}”, last {WINDOW} slots")
    axes[1].set(title=f"Points above “{places[1][0][0]}”", xlabel="slot")
    name_below(canvas)
    png(canvas, path)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="of `tanbr simulate --out`")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--above", action="append", default=[], help="label=folder:method")
    parser.add_argument("--below", action="append", default=[], help="label=folder:method")
    given = parser.parse_args()
    about = {"runs": {folder.name: figures(folder) for folder in given.folders}}
    write_atomically(given.json, json.dumps(about, indent=1) + "\n")
    if given.picture:
        draw(given.above, given.below, given.picture)


if __name__ == "__main__":
    main()
