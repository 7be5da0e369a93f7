"""Many experts: the plain router beside one over eight groups, K = 8, 64 and 192; regret, time, memory.

Worlds are of `suite/kindred.py`: experts come in eight families, with more or less variation inside. Each world's
figures are kept in `--out`.runs; a command that was stopped goes on with those that are missing. `--part qwen` merges
and runs a Qwen3-MoE of 64 made-up experts instead.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from tanbr.grouping.by_reward import by_reward

from suite.kindred import TASKS, Kindred, KindredWorld
from tanbr.router import Tanbr
from tanbr.router.groups import Groups
from tanbr.types import Router

MAPS, INSIDE, EXPERTS = ("bumps", "sigmoids"), (0.1, 0.3), (8, 64, 192)
SEED = 1000  # added to a world's seed: routers and worlds never share one
ROUTERS = ("plain", "right", "right, splits", "half right", "half right, splits", "random")
SURVEYED = 64  # requests, right or wrong, behind each reward of a survey of the experts alone


def surveyed(world: KindredWorld) -> tuple[np.ndarray, np.ndarray]:
    """Every expert alone, on 64 requests a task."""
    alone, rng = np.eye(world.what.experts), np.random.default_rng(world.what.seed)
    return alone, rng.binomial(SURVEYED, np.clip(world.map(alone), 0, 1)) / SURVEYED


def router_of(name: str, world: KindredWorld, *, settle: int) -> Tanbr:
    """Make a router of the study."""
    K, seed = world.what.experts, SEED + world.what.seed
    if name == "plain":
        return Tanbr(K, TASKS, seed=seed)
    config = {"groups": {"splits": 4 if "splits" in name else 0, "settle": settle}}
    return Tanbr(K, TASKS, groups=world.partition(name.split(",")[0]), seed=seed, config=config)


class Timed:
    """A router whose asks and tells are timed, in CPU time."""

    def __init__(self, router: Router) -> None:
        self._router, self.asks, self.tells = router, list[float](), list[float]()

    def ask(self, task_mix: Any, **asked: Any) -> Any:
        """Ask."""
        start = time.process_time()
        decision = self._router.ask(task_mix, **asked)
        self.asks.append(1e3 * (time.process_time() - start))
        return decision

    def tell(self, decision: Any, reward: Any, counts: Any = None) -> None:
        """Tell."""
        start = time.process_time()
        self._router.tell(decision, reward, counts)
        self.tells.append(1e3 * (time.process_time() - start))


def agreement(groups: Groups, family: np.ndarray) -> float:
    """Adjusted Rand index of a partition and the families."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(family, groups.of_expert))


def play(world: KindredWorld, name: str, *, settle: int) -> dict[str, Any]:
    """Run one router, and say what it comes down to."""
    router = router_of(name, world, settle=settle)
    timed = Timed(router)
    first = getattr(router, "groups", None)
    regret = world.run(timed).regret
    with tempfile.TemporaryDirectory() as folder:
        router.save(Path(folder) / "state.npz")
        size = (Path(folder) / "state.npz").stat().st_size
    return {
        "router": name, "map": world.what.map, "experts": world.what.experts, "inside": world.what.inside,
        "seed": world.what.seed, "mean": float(regret.mean()), "first": float(regret[:100].mean()),
        "last": float(regret[-100:].mean()), "best": float(world.best.mean()),
        "ask_ms": float(np.median(timed.asks)), "tell_ms": float(np.median(timed.tells)),
        "worst_tell_ms": float(np.max(timed.tells)), "state_bytes": size,
        "groups": len(getattr(router, "groups", ())) or None,
        "agreement by reward": agreement(by_reward(*surveyed(world), into=8).groups, world.family),
        "agreement": None if first is None else agreement(first, world.family),
        "curve": [round(float(part.mean()), 5) for part in np.array_split(regret, 30)],
    }  # fmt: skip


def peak_bytes(make: Callable[[], Router], *, slots: int = 40) -> int:
    """Most memory that a router's arrays have taken, by tracemalloc."""
    tracemalloc.start()
    router, rng = make(), np.random.default_rng(0)
    for _ in range(slots):
        decision = router.ask(rng.dirichlet(np.ones(TASKS)))
        router.tell(decision, rng.random(TASKS))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def memory() -> list[dict[str, Any]]:
    """Peak memory of both routers at every K."""
    rows = []
    for K in EXPERTS:
        rows.append({"experts": K, "router": "plain", "peak_bytes": peak_bytes(partial(Tanbr, K, TASKS))})
        if K > 8:
            groups = Groups.by_labels((np.arange(K) % 8).tolist())
            grouped = peak_bytes(partial(Tanbr, K, TASKS, groups=groups))
            rows.append({"experts": K, "router": "grouped", "peak_bytes": grouped})
    return rows


def spread(values: list[float]) -> tuple[float, float]:
    """Mean and deviation."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")


def by_seed(runs: list[dict[str, Any]], key: str, **where: Any) -> list[float]:
    """Means over the worlds of every seed."""
    picked = [run for run in runs if all(run[name] == value for name, value in where.items())]
    seeds = sorted({run["seed"] for run in picked})
    return [float(np.mean([run[key] for run in picked if run["seed"] == seed])) for seed in seeds]


def table(runs: list[dict[str, Any]]) -> list[str]:
    """One row a K, variation inside and router: mean ± deviation over seeds."""
    lines = ["| K | inside | router | mean regret | first 100 | last 100 | ask + tell, ms | state, MB | groups agree |"]
    lines.append("|---" * 9 + "|")
    for K in EXPERTS:
        for inside in INSIDE:
            for name in ROUTERS:
                where = {"experts": K, "inside": inside, "router": name}
                if not by_seed(runs, "mean", **where):
                    continue
                cells = [
                    "{:.4f} ± {:.4f}".format(*spread(by_seed(runs, k, **where))) for k in ("mean", "first", "last")
                ]
                cost = np.mean(by_seed(runs, "ask_ms", **where)) + np.mean(by_seed(runs, "tell_ms", **where))
                size = np.mean(by_seed(runs, "state_bytes", **where)) / 1e6
                agrees = "–" if name == "plain" else f"{np.mean(by_seed(runs, 'agreement', **where)):.2f}"
                cells += [f"{cost:.2f}", f"{size:.2f}", agrees]
                lines.append(f"| {K} | {inside} | {name} | {' | '.join(cells)} |")
    return lines


def draw(runs: list[dict[str, Any]], path: Path, slots: int) -> None:
    """Regret over time, a panel for every K above 8 and variation inside."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(9, 6), layout="constrained", sharex=True, sharey=True)
    at = (np.arange(30) + 0.5) * slots / 30
    for row, K in enumerate(EXPERTS[1:]):
        for column, inside in enumerate(INSIDE):
            ax = axes[row, column]
            for name in ROUTERS:
                curves = [r["curve"] for r in runs if (r["experts"], r["inside"], r["router"]) == (K, inside, name)]
                if curves:
                    own = {"color": "black", "linewidth": 2.2} if name == "plain" else {"linewidth": 1.3}
                    ax.plot(at, np.maximum(np.mean(curves, axis=0), 1e-3), label=name, **own)
            ax.set(title=f"K = {K}, variation inside families {inside}", yscale="log")
            ax.title.set_fontsize(10)
            ax.grid(alpha=0.3)
    for ax in axes[:, 0]:
        ax.set_ylabel("mean regret")
    for ax in axes[1]:
        ax.set_xlabel("slot")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run what is missing, print the table, and keep what `--out` names (JSON, and a picture beside it)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["worlds", "qwen"], default="worlds")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0, 1, …")
    parser.add_argument("--slots", type=int, default=200, help="of every run")
    parser.add_argument("--settle", type=int, default=60, help="slots between splits")
    parser.add_argument("--experts", type=int, nargs="+", default=list(EXPERTS), help="only these K")
    parser.add_argument("--inside", type=float, nargs="+", default=list(INSIDE), help="only this variation")
    parser.add_argument("--routers", nargs="+", default=list(ROUTERS), choices=ROUTERS, help="only these")
    parser.add_argument("--out", type=Path, default=Path("out/large_k.json"))
    options = parser.parse_args()
    facts = {
        "command": "python " + " ".join(sys.argv), "python": platform.python_version(), "numpy": np.__version__,
        "seeds": options.seeds, "slots": options.slots, "settle": options.settle,
    }  # fmt: skip
    if options.part == "qwen":
        from suite.qwen import study

        report = facts | study(seeds=options.seeds, slots=options.slots)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")
        return
    kept = options.out.with_suffix(".runs")
    kept.mkdir(parents=True, exist_ok=True)
    runs: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        for what in [
            Kindred(m, K, i, seed, options.slots) for K in options.experts for i in options.inside for m in MAPS
        ]:
            file = kept / f"{seed}-{what.experts}-{what.inside}-{what.map}.json"
            found = json.loads(file.read_text()) if file.exists() else []
            wanted = options.routers if what.experts > 8 else ROUTERS[:1]
            missing = [name for name in wanted if name not in {run["router"] for run in found}]
            if missing:
                world = KindredWorld(what)
                found += [play(world, name, settle=options.settle) for name in missing]
                file.write_text(json.dumps(found) + "\n")
                print(f"{file.name}: " + ", ".join(f"{run['router']} {run['mean']:.4f}" for run in found), flush=True)
            runs += found
    lines = table(runs)
    print("\n".join(lines))
    options.out.write_text(json.dumps(facts | {"memory": memory(), "runs": runs}, indent=1) + "\n")
    draw(runs, options.out.with_suffix(".png"), options.slots)


if __name__ == "__main__":
    main()
