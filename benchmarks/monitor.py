"""How well and how cheaply the monitor knows the task mix: against counting votes, and against QuaPy.

    python benchmarks/monitor.py --quick                                   # generated tasks, under a minute
    python benchmarks/monitor.py --data GLUE_FOLDER --out docs/results/monitor/glue.json --plots docs/results/monitor

The history comes from train text, every slot from text held out of it (GLUE's dev, the generated tasks' test split).
Errors are L1 distances between mixes: of a slot against the mix it really held, of a forecast against the latent mix.
QuaPy (`pip install quapy`) is optional; without it the rivals are those written here. Each part is a module of
`monitoring/`.
"""

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from monitoring import cost, forecast, mix, pictures, recognition, teaching, unknown
from monitoring.data import Data, load
from tanbr.files import write_atomically
from tanbr.types import to_jsonable

PARTS = ("recognition", "mix", "forecast", "unknown", "clusters", "feedback", "cost")
PACKAGES = ("numpy", "scipy", "sklearn", "torch", "quapy")


def measured(part: str, data: Data, *, quick: bool, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure one part: titles and figures."""
    per_task, many = (200, 200) if quick else (500, 2000)
    clean = data.normalised()
    if part == "recognition":
        for texts in (data, clean):
            yield texts.name, recognition.measure(texts, per_task=per_task)
    elif part == "mix":
        for texts in (data,) if quick else (data, clean):
            for known in sorted({per_task, many}):
                yield (
                    f"{texts.name}, {known} texts a task",
                    mix.measure(texts, per_task=known, repeats=2 if quick else 25, seed=seed, rivals=known == per_task),
                )
    elif part == "forecast":
        table, run = forecast.measure(data, per_task=per_task, length=42 if quick else 162, seeds=1 if quick else 2)
        yield "L1 of the forecast", table
        yield "run", run
    elif part == "unknown":
        yield "slots of 64", unknown.measure(data, per_task=per_task, repeats=5 if quick else 100, seed=seed)
    elif part == "clusters":
        for texts in (data, clean):
            yield f"{texts.name}, no labels", teaching.measure_clusters(texts, repeats=2 if quick else 10, seed=seed)
    elif part == "feedback":
        yield "L1 by texts known a task", teaching.measure_feedback(data, seed=seed)
    else:
        yield "CPU", cost.measure(data, per_task=per_task, repeats=3 if quick else 9, seed=seed)


def show(title: str, table: dict[str, Any]) -> None:
    """Print a table of numbers."""
    print(f"\n{title}")
    for name, row in table.items():
        if isinstance(row, np.ndarray):
            continue
        cells = row.items() if isinstance(row, dict) else [("", row)]
        print(f"  {name:52s}", "  ".join(f"{key} {_short(value)}" for key, value in cells))


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "/".join(_short(item) for item in value)
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,.0f}"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="folder with GLUE's TSV folders; without it, the generated tasks")
    parser.add_argument("--quick", action="store_true", help="a minute at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--plots", type=Path, help="draw into this folder")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="measure only these; the rest of --out stays"
    )
    options = parser.parse_args()
    quick, seed = options.quick, options.seed
    data = load(options.data, history=200 if quick else 2000, live=200 if quick else 1500, seed=seed)
    results: dict[str, Any] = {}
    for part in options.parts:
        for title, figures in measured(part, data, quick=quick, seed=seed):
            if title == "run":  # for the picture
                results["run"] = figures
                continue
            results.setdefault(part, {})[title] = figures
            show(title, figures)
    if options.out:
        write(options, results)
    if options.plots:
        pictures.draw(json.loads(options.out.read_text()) if options.out else results, data.tasks, options.plots)


def write(options: argparse.Namespace, results: dict[str, Any]) -> None:
    """Write the figures, beside those of other parts that were measured before."""
    before = json.loads(options.out.read_text()) if options.out.exists() and options.parts != PARTS else {}
    versions = {name: sys.modules[name].__version__ for name in PACKAGES if name in sys.modules}
    command = "python benchmarks/monitor.py" + " --data GLUE" * bool(options.data) + " --quick" * options.quick
    about = {"command": command, "seed": options.seed, "slots per size and alpha": 2 if options.quick else 25}
    about["versions"] = {**before.get("versions", {}), "python": platform.python_version(), **versions}
    write_atomically(options.out, json.dumps(to_jsonable({**before, **about, **results}), indent=1) + "\n")


if __name__ == "__main__":
    main()
