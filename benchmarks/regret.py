"""The regret study: every router on held-out reward maps, and the default router under what deployment adds.

Constants were chosen on map seeds from 100 upwards; the study runs on seeds from 0. `--quick` is a first look.
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

from suite.maps import FAMILIES
from suite.rivals import RIVALS, default
from suite.run import MIXES, Scenario, Trace, World
from tanbr.router.theory import growth_exponent

CONDITIONS: dict[str, dict[str, Any]] = {
    "half the tasks unseen": {"unseen": 0.5},
    "rewards 5 slots late": {"delay": 5},
    "noise 0.15": {"noise": 0.15},
    "at most 2 experts": {"max_active": 2},
    "32 experts": {"experts": 32},
}


def scenarios(seeds: Iterable[int], experts: Iterable[int], **more: Any) -> list[Scenario]:
    """Every family and mix."""
    combined = itertools.product(FAMILIES, MIXES, experts, seeds)
    return [Scenario(**{"family": f, "mix": m, "experts": k, "seed": s, **more}) for f, m, k, s in combined]


def figures(trace: Trace) -> dict[str, Any]:
    """Say what one run comes down to."""
    return {
        "mean": float(trace.regret.mean()), "last": float(trace.regret[-100:].mean()), "slots to 95%": trace.slots_to(),
        "exponent": growth_exponent(np.maximum(trace.regret, 0)) if trace.regret.sum() > 1e-6 else 0.0,
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
            self.runs.append({**row, **figures(world.run(routers[name](s)))})

    def pick(self, condition: str, router: str, **where: Any) -> list[dict[str, Any]]:
        """Find the runs of a router under a condition."""
        wanted = {"condition": condition, "router": router, **where}
        return [run for run in self.runs if all(run[key] == value for key, value in wanted.items())]

    def table(self, condition: str, groups: dict[str, dict[str, Any]]) -> list[str]:
        """Mean regret per router, in all and per group, with the standard error over runs."""
        names = list(dict.fromkeys(run["router"] for run in self.runs if run["condition"] == condition))
        lines = [f"| router | runs | mean regret | last 100 | slots to 95% (median) | {' | '.join(groups)} |"]
        lines.append("|---" * (5 + len(groups)) + "|")
        for name in names:
            runs = self.pick(condition, name)
            mean, error = spread([run["mean"] for run in runs])
            parts = [
                f"{spread([r['mean'] for r in self.pick(condition, name, **where)])[0]:.4f}"
                for where in groups.values()
            ]
            last, reach = spread([run["last"] for run in runs])[0], np.median([run["slots to 95%"] for run in runs])
            lines.append(
                f"| {name} | {len(runs)} | {mean:.4f} ± {error:.4f} | {last:.4f} | {reach:.0f} | {' | '.join(parts)} |"
            )
        return lines

    def paired(self, condition: str, one: str, other: str) -> tuple[float, float]:
        """Mean difference of two routers' regret on the same worlds, and its standard error."""
        left, right = self.pick(condition, one), self.pick(condition, other)
        return spread([a["mean"] - b["mean"] for a, b in zip(left, right, strict=True)])


def spread(values: list[float]) -> tuple[float, float]:
    """Mean and standard error."""
    array = np.array(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1) / np.sqrt(len(array))) if len(array) > 1 else float("nan")


def moving(study: Study, seeds: Iterable[int], slots: int) -> None:
    """Replace the map half way: with and without forgetting."""
    routers = {"tanbr": default(), "tanbr, forgetting 0.98": default(forgetting=0.98)}
    for scenario in scenarios(seeds, (8,), slots=slots, moves_at=slots // 2):
        study.play("the map moves", World(scenario), routers, routers)


def report(study: Study) -> str:
    """Write the study as Markdown."""
    families = {name: {"family": name} for name in FAMILIES}
    sizes = {
        f"K = {k}": {"experts": k} for k in sorted({r["experts"] for r in study.runs if r["condition"] == "plain"})
    }
    lines = ["# Regret study", "", "Mean regret per slot, ± standard error over runs.", ""]
    lines += study.table("plain", {**sizes, **families})
    if study.pick("plain", "tanbr without tree"):
        mean, error = study.paired("plain", "tanbr", "tanbr without tree")
        lines += ["", f"The tree's share, paired over worlds: {mean:+.4f} ± {error:.4f}."]
    exponents = [run["exponent"] for run in study.pick("plain", "tanbr")]
    lines += ["", f"Growth exponent of tanbr's summed regret, median over runs: {np.median(exponents):.2f}."]
    for condition in dict.fromkeys(run["condition"] for run in study.runs):
        if condition != "plain":
            lines += ["", f"## {condition[0].upper()}{condition[1:]}", "", *study.table(condition, families)]
            names = list(dict.fromkeys(r["router"] for r in study.runs if r["condition"] == condition))
            for other in names:
                if other != "tanbr":
                    mean, error = study.paired(condition, "tanbr", other)
                    lines += ["", f"tanbr minus {other}, paired: {mean:+.4f} ± {error:.4f}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the study, print its tables, and keep what `--out` names (JSON, and Markdown beside it)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, 100 slots, few routers: under a minute")
    parser.add_argument("--seeds", type=int, default=3, help="map seeds 0, 1, … of the main table")
    parser.add_argument("--condition-seeds", type=int, default=1, help="map seeds of the conditions' tables")
    parser.add_argument("--slots", type=int, default=1000)
    parser.add_argument("--only", nargs="*", help="routers of the main table")
    parser.add_argument("--out", type=Path, help="write runs to this JSON file and the tables beside it as .md")
    options = parser.parse_args()
    slots = 100 if options.quick else options.slots
    seeds = range(1 if options.quick else options.seeds)
    names = options.only or (["random", "vector GP", "tanbr without tree", "tanbr"] if options.quick else list(RIVALS))
    study = Study()
    for scenario in scenarios(seeds, (8,) if options.quick else (4, 8), slots=slots):
        study.play("plain", World(scenario), names, RIVALS)
        print(".", end="", flush=True)
    if not options.quick:
        few = range(options.condition_seeds)
        for condition, change in CONDITIONS.items():
            experts = [change.get("experts", 8)]
            for scenario in scenarios(few, experts, slots=slots, **{k: v for k, v in change.items() if k != "experts"}):
                study.play(condition, World(scenario), ["vector GP", "tanbr without tree", "tanbr"], RIVALS)
                print(".", end="", flush=True)
        moving(study, few, slots)
    text = report(study)
    print("\n" + text)
    if options.out:
        head = {"command": "python " + " ".join(sys.argv), "python": platform.python_version(), "numpy": np.__version__}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({**head, "slots": slots, "runs": study.runs}, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
