"""The regret study: every router on held-out reward maps, and the default router under what deployment adds.

Constants were chosen on map seeds from 100 upwards; the study runs on seeds from 0. `--suite` names the maps
(`suite/maps.py`): those of the study, harder ones, or the held ones, on which nothing was ever tried. `--quick` is a
first look.
"""

import argparse
import itertools
import json
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from suite.maps import SUITES
from suite.rivals import RIVALS, default
from suite.run import MIXES, Scenario, Trace, World
from tanbr.router.theory import growth_exponent

OURS = ["tanbr without tree", "tanbr"]
MORE_FIXED = "fixed blends in the tree's room"
MOVES = "the map moves"
CONDITIONS: dict[str, dict[str, Any]] = {
    "half the tasks unseen": {"unseen": 0.5},
    "rewards 5 slots late": {"delay": 5},
    "noise 0.15": {"noise": 0.15},
    "at most 2 experts": {"max_active": 2},
    "32 experts": {"experts": 32},
}


def scenarios(
    suite: str, mixes: Iterable[str], seeds: Iterable[int], experts: Iterable[int], **more: Any
) -> list[Scenario]:
    """Every family of a suite, with these mixes."""
    combined = itertools.product(SUITES[suite], mixes, experts, seeds)
    return [Scenario(**{"family": f, "mix": m, "experts": k, "seed": s, **more}) for f, m, k, s in combined]


def figures(trace: Trace) -> dict[str, Any]:
    """Say what one run comes down to."""
    return {
        "mean": float(trace.regret.mean()), "last": float(trace.regret[-100:].mean()), "slots to 95%": trace.slots_to(),
        "exponent": growth_exponent(np.maximum(trace.regret, 0)) if trace.regret.sum() > 1e-6 else 0.0,
        "curve": [round(float(part.mean()), 5) for part in np.array_split(trace.regret, 40)],
    }  # fmt: skip


class Study:
    """Runs, and the rows of the tables they make."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []

    def play(self, condition: str, world: World, names: Iterable[str], routers: dict[str, Any]) -> None:
        """Run some routers on one world."""
        s = world.scenario
        for name in names:
            row = {
                "condition": condition,
                "router": name,
                "family": s.family,
                "mix": s.mix,
                "experts": s.experts,
                "seed": s.seed,
            }
            router = routers[name](s)
            row |= figures(world.run(router))
            history = getattr(router, "history", ())
            self.runs.append({**row, "changes": getattr(history[-1].terms, "changes", 0) if history else 0})
            print(*(self.runs[-1][key] for key in (*list(row)[:8], "changes")), sep=" | ", file=sys.stderr, flush=True)

    def pick(self, condition: str, router: str, **where: Any) -> list[dict[str, Any]]:
        """Find the runs of a router under a condition."""
        wanted = {"condition": condition, "router": router, **where}
        return [run for run in self.runs if all(run[key] == value for key, value in wanted.items())]

    def table(self, condition: str, groups: dict[str, dict[str, Any]]) -> list[str]:
        """Mean regret per router, in all and per group, with the standard error over runs."""
        names = list(dict.fromkeys(run["router"] for run in self.runs if run["condition"] == condition))
        lines = [f"| router | runs | mean regret | last 100 | slots to 95% (median) | changes | {' | '.join(groups)} |"]
        lines.append("|---" * (6 + len(groups)) + "|")
        for name in names:
            runs = self.pick(condition, name)
            mean, error = spread([run["mean"] for run in runs])
            parts = [
                f"{spread([r['mean'] for r in self.pick(condition, name, **where)])[0]:.4f}"
                for where in groups.values()
            ]
            last, reach = spread([run["last"] for run in runs])[0], np.median([run["slots to 95%"] for run in runs])
            first = f"| {name} | {len(runs)} | {mean:.4f} ± {error:.4f} | {last:.4f} | {reach:.0f}"
            lines.append(f"{first} | {sum(run['changes'] for run in runs)} | {' | '.join(parts)} |")
        return lines

    def paired(self, condition: str, one: str, other: str) -> tuple[float, float]:
        """Mean difference of two routers' regret on the same worlds, and its standard error."""
        left, right = self.pick(condition, one), self.pick(condition, other)
        return spread([a["mean"] - b["mean"] for a, b in zip(left, right, strict=True)])


def spread(values: list[float]) -> tuple[float, float]:
    """Mean and standard error."""
    array = np.array(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1) / np.sqrt(len(array))) if len(array) > 1 else float("nan")


def moving(study: Study, worlds: list[Scenario], asked: list[str] | None) -> None:
    """Replace the map half way: by evidence, and without."""
    routers = {
        "tanbr": default(),
        "tanbr that never forgets": default(change=0.0),
    }
    for scenario in worlds:
        study.play(MOVES, World(scenario), asked or routers, routers)


def report(study: Study, suite: str) -> str:
    """Write the study as Markdown."""
    families = {name: {"family": name} for name in SUITES[suite]}
    lines = ["# Regret study", "", f"Suite: {suite}. Mean regret per slot, ± standard error over runs; `changes` are"]
    lines += ["tasks found changed, in all runs."]
    plain = [run for run in study.runs if run["condition"] == "plain"]
    if plain:
        sizes = {f"K = {k}": {"experts": k} for k in sorted({run["experts"] for run in plain})}
        lines += ["", *study.table("plain", {**sizes, **families})]
        exponents = [run["exponent"] for run in study.pick("plain", "tanbr")]
        names = {run["router"] for run in plain}
        for other in (OURS[0], MORE_FIXED):
            if other in names:
                mean, error = study.paired("plain", "tanbr", other)
                lines += ["", f"tanbr minus {other}, paired over worlds: {mean:+.4f} ± {error:.4f}."]
        lines += ["", f"Growth exponent of tanbr's summed regret, median over runs: {np.median(exponents):.2f}."]
    for condition in dict.fromkeys(run["condition"] for run in study.runs):
        if condition != "plain":
            lines += ["", f"## {condition[0].upper()}{condition[1:]}", "", *study.table(condition, families)]
            for other in dict.fromkeys(run["router"] for run in study.runs if run["condition"] == condition):
                if other != "tanbr":
                    mean, error = study.paired(condition, "tanbr", other)
                    lines += ["", f"tanbr minus {other}, paired: {mean:+.4f} ± {error:.4f}."]
    return "\n".join(lines) + "\n"


def draw(study: Study, path: Path, slots: int) -> None:
    """Regret over time, one line per router, mean of all runs of the main table."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 4.5), layout="constrained")
    at = (np.arange(40) + 0.5) * slots / 40
    for name in dict.fromkeys(run["router"] for run in study.runs if run["condition"] == "plain"):
        curve = np.mean([run["curve"] for run in study.pick("plain", name)], axis=0)
        own = {"linewidth": 2.5, "color": "black"} if name == "tanbr" else {"linewidth": 1.2}
        axes.plot(at, np.maximum(curve, 1e-4), label=name, **own)
    axes.set(yscale="log", xlabel="slot", ylabel="mean regret", title="Regret on held-out reward maps")
    figure.legend(loc="outside right center", fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Run the study, print its tables, and keep what `--out` names (JSON, and tables and picture beside it)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, 100 slots, few routers: under a minute")
    parser.add_argument("--part", choices=["rivals", "ablation", "conditions"], default="rivals")
    parser.add_argument("--suite", choices=list(SUITES), default="own", help="which reward maps")
    parser.add_argument("--conditions", default=f"{','.join(CONDITIONS)},{MOVES}", help="which, between commas")
    parser.add_argument("--mixes", default=",".join(MIXES), help="which, between commas")
    parser.add_argument("--experts", default="4,8", help="how many, between commas; a condition has its own, else 8")
    parser.add_argument("--routers", help="which, by name, between commas; else those of the part")
    parser.add_argument("--seeds", type=int, default=1, help="map seeds 0, 1, …")
    parser.add_argument("--first", type=int, default=0, help="first map seed; from 100 on they are for trying")
    parser.add_argument("--slots", type=int, default=1000)
    parser.add_argument("--out", type=Path, help="write runs to this JSON file; tables and picture go beside it")
    options = parser.parse_args()
    slots, seeds = 100 if options.quick else options.slots, range(options.first, options.first + options.seeds)
    asked, mixes = options.routers.split(",") if options.routers else None, options.mixes.split(",")
    study, routers = Study(), {**RIVALS, MORE_FIXED: default(pool=1000, room=0)}
    if options.part == "conditions":
        wanted = options.conditions.split(",")
        for condition, change in ((name, change) for name, change in CONDITIONS.items() if name in wanted):
            own = {"slots": slots, **_without(change, "experts")}
            for scenario in scenarios(options.suite, mixes, seeds, [change.get("experts", 8)], **own):
                study.play(condition, World(scenario), asked or OURS, RIVALS)
        if MOVES in wanted:
            moving(study, scenarios(options.suite, mixes, seeds, (8,), slots=slots, moves_at=slots // 2), asked)
    else:
        names = ["random", "vector GP", *OURS] if options.quick else list(RIVALS)
        if options.part == "ablation":
            names = [*OURS, MORE_FIXED]
        sizes = [8] if options.quick else [int(size) for size in options.experts.split(",")]
        for scenario in scenarios(options.suite, mixes, seeds, sizes, slots=slots):
            study.play("plain", World(scenario), asked or names, routers)
    text = report(study, options.suite)
    print(text)
    if options.out:
        head = {"command": "python " + " ".join(sys.argv), "python": platform.python_version(), "numpy": np.__version__}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({**head, "slots": slots, "runs": study.runs}) + "\n")
        options.out.with_suffix(".md").write_text(text)
        if options.part == "rivals":
            draw(study, options.out.with_suffix(".png"), slots)


def _without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


if __name__ == "__main__":
    main()
