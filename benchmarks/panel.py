"""What G merged models earn, cold: routers on a surrogate of surveyed blends, requests assigned by noisy posteriors.

A slot has 64 requests, each right or wrong; a recogniser reads a request's task rightly in 92.7% of cases, or as a
table of `--confusion` says. Rewards are those of the survey that the package carries, or of `--survey`, smoothed by a
Gaussian process between its blends; the mix is known. Fixed panels and those for each slot are chosen among the
surveyed blends, with the true rewards known. `--quick` is a first look; `--out` keeps the figures as JSON. The last
part is the time of an ask against G and K.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from tanbr.lab.rivals import Proportional
from tanbr.lab.rivals.search import Table
from tanbr.lab.tasks.traffic import mixes as task_mixes
from tanbr.moe.embedded import path as embedded
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.router.panel import Readings, chosen
from tanbr.types import Decision, FloatArray, Router

REQUESTS, RECOGNISED = 64, 0.927
Make = Callable[[int], Router]  # of a seed


class World:
    """Mean rewards of any blend, and the mixes of a run."""

    def __init__(
        self, survey: Path, *, slots: int, alpha: float, seed: int, confusion: FloatArray | None, told: bool
    ) -> None:
        values = json.loads(survey.read_text(encoding="utf-8"))
        self.table = Table(np.array(values["blends"]), np.array(values["rewards"]))
        self.experts, self.tasks = self.table.blends.shape[1], self.table.rewards.shape[1]
        self.mixes = task_mixes("dirichlet", tasks=self.tasks, slots=slots, seed=seed, alpha=alpha)
        self.seed = seed
        wrong = (1 - RECOGNISED) / (self.tasks - 1)
        even = np.full((self.tasks, self.tasks), wrong) + (RECOGNISED - wrong) * np.eye(self.tasks)
        self.confusion = None if confusion is None else confusion / confusion.sum(axis=1, keepdims=True)
        self.told = self.confusion if told else None
        likely = even if self.confusion is None else np.maximum(self.confusion, 1e-3)
        self.posteriors = (likely / likely.sum(axis=0)).T  # (V, V) of a request that is read as v

    def rewards(self, blends: FloatArray) -> FloatArray:
        """Mean rewards (n, V) of blends (n, K)."""
        return np.clip(self.table.expected(blends)[0], 0.0, 1.0)

    def run(self, router: Router, models: int) -> FloatArray:
        """Play every slot: the expected reward of its requests (T,)."""
        rng = np.random.default_rng([self.seed, 7])
        earned = np.zeros(len(self.mixes))
        for t, mix in enumerate(self.mixes):
            panel = router.ask(mix, models=models, confusion=self.told)
            earned[t] = self.serve(panel, router, rng, mix)
        return earned

    def serve(self, panel: Decision, router: Router | None, rng: np.random.Generator, mix: FloatArray) -> float:
        """Assign a slot's requests, answer and tell them."""
        truth = self.rewards(panel.blends)  # (G, V)
        tasks = rng.choice(self.tasks, size=REQUESTS, p=mix)
        slips = (tasks + rng.integers(1, self.tasks, REQUESTS)) % self.tasks
        chance = rng.random(REQUESTS)
        read = np.where(chance < RECOGNISED, tasks, slips)
        if self.confusion is not None:
            read = np.minimum((chance[:, None] > self.confusion[tasks].cumsum(axis=1)).sum(axis=1), self.tasks - 1)
        models = panel.assign(self.posteriors[read])
        right = rng.random(REQUESTS) < truth[models, tasks]
        counts, total = np.zeros((2, *truth.shape))
        np.add.at(counts, (models, tasks), 1.0)
        np.add.at(total, (models, tasks), right)
        if router is not None:
            router.tell(panel, np.where(counts > 0, total / np.maximum(counts, 1), np.nan), counts)
        return float(truth[models, tasks].mean())

    def best(self, models: int, *, fixed: bool = False) -> FloatArray:
        """The best panel of surveyed blends for each slot's mix, or for an even one, the true rewards known: (T,)."""
        known = self.rewards(self.table.blends)
        rng, earned = np.random.default_rng([self.seed, 7]), np.zeros(len(self.mixes))
        even = np.full(self.tasks, 1 / self.tasks)
        for t, mix in enumerate(self.mixes):
            rows = chosen(known, Readings.of(even if fixed else mix, self.told), models)
            panel = Decision(t, mix, self.table.blends[rows], known[rows])
            earned[t] = self.serve(panel, None, rng, mix)
        return earned

    def unmerged(self) -> dict[str, FloatArray]:
        """Each request to its task's own expert, the task recognised or told; and the even blend for all: (T,) each."""
        own = np.diag(self.rewards(np.eye(self.experts)))  # the experts are in the tasks' order
        rng, recognised = np.random.default_rng([self.seed, 7]), np.zeros(len(self.mixes))
        for t, mix in enumerate(self.mixes):
            panel = Decision(t, mix, np.eye(self.experts), np.diag(own))
            recognised[t] = self.serve(panel, None, rng, mix)
        even = self.rewards(np.full((1, self.experts), 1 / self.experts))[0]
        return {"un-merged, recognised": recognised, "un-merged, tagged": self.mixes @ own, "even": self.mixes @ even}


def routers(world: World) -> dict[str, Make]:
    """The routers of the table."""
    K, V = world.experts, world.tasks
    own = tuple(range(V))  # the embedded model's experts are in its tasks' order
    return {
        "tanbr, experts' tasks known": lambda seed: Tanbr(K, V, seed=seed, config=RouterConfig().of_requests(own)),
        "tanbr, nothing known": lambda seed: Tanbr(K, V, seed=seed, config=RouterConfig().of_requests()),
        "proportional in groups, learns nothing": lambda _: Proportional(K, V, own=own),
    }


def ask_speed(*, repeats: int) -> list[dict[str, Any]]:
    """Median time of an ask after 60 told slots, against G and K."""
    rows = []
    for experts in (8, 32, 192):
        router, rng = Tanbr(experts, 8), np.random.default_rng(0)
        for _ in range(60):
            decision = router.ask(rng.dirichlet(np.ones(8)))
            router.tell(decision, rng.random(8), rng.integers(1, 9, 8))
        for models in (1, 2, 4, 8):
            times = []
            for _ in range(repeats):
                start = time.perf_counter()
                panel = router.ask(np.full(8, 1 / 8), models=models)
                times.append(1e3 * (time.perf_counter() - start))
                router.tell(panel, np.full((models, 8), np.nan))
            rows.append({"experts": experts, "models": models, "median_ms": float(np.median(times))})
    return rows


def main() -> None:
    """Run, print, and keep what `--out` names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two seeds, 100 slots")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--slots", type=int, default=400)
    parser.add_argument("--alpha", type=float, default=0.3, help="of the Dirichlet mixes")
    parser.add_argument("--models", default="1,2,3,4")
    parser.add_argument("--confusion", type=Path, help="JSON with `confusion` (V, V), how each task's texts are read")
    parser.add_argument("--told", action="store_true", help="routers are told how requests are read")
    parser.add_argument("--recognised", action="store_true", help="no request is misread")
    parser.add_argument("--survey", type=Path, default=embedded() / "survey.json")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    seeds, slots = range(2 if options.quick else options.seeds), 100 if options.quick else options.slots
    found: dict[str, Any] = {}
    confusion = np.array(json.loads(options.confusion.read_text())["confusion"]) if options.confusion else None
    if options.recognised:
        confusion = np.eye(len(json.loads(options.survey.read_text())["rewards"][0]))
    for models in (int(part) for part in options.models.split(",")):
        for seed in seeds:
            world = World(
                options.survey, slots=slots, alpha=options.alpha, seed=seed, confusion=confusion, told=options.told
            )
            runs = {name: world.run(make(seed), models) for name, make in routers(world).items()}
            runs["best surveyed panel for each slot"] = world.best(models)
            runs["best fixed panel"] = world.best(models, fixed=True)
            named = {f"G = {models}: {name}": earned for name, earned in runs.items()} | world.unmerged()
            for name, earned in named.items():
                row = found.setdefault(name, {"all": [], "second half": []})
                if len(row["all"]) == len(seeds):
                    continue  # it is the same for every G
                row["all"].append(float(earned.mean()))
                row["second half"].append(float(earned[slots // 2 :].mean()))
    for name, row in found.items():
        row |= {f"{part} mean": float(np.mean(row[part])) for part in ("all", "second half")}
        row["deviation"] = float(np.std(row["second half"], ddof=1))
        print(
            f"{name:55} all {row['all mean']:.3f}  second half {row['second half mean']:.3f} ± {row['deviation']:.3f}"
        )
    speed = ask_speed(repeats=11 if options.quick else 51)
    for entry in speed:
        print(f"ask, K = {entry['experts']:3}, G = {entry['models']}: {entry['median_ms']:.2f} ms")
    if options.out:
        about = {
            "command": "python " + " ".join(sys.argv),
            "python": platform.python_version(),
            "numpy": np.__version__,
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({**about, "slots": slots, "runs": found, "ask": speed}, indent=1) + "\n")


if __name__ == "__main__":
    main()
