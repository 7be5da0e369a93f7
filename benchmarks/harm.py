"""Does a cold router cost anything? Real blends with request noise: rewards of a MiniLM-MoE's blends on GLUE.

The table (`tables.json`: blends and their rewards on 48 held rows a task, by averages and by regression) is smoothed by
a Gaussian process whose constants have the highest likelihood; its mean is the truth that a slot's rewards are drawn
from: 64 requests by the drifting stream of `tanbr simulate`, right or wrong by the truth at the chosen blend, NaN for
tasks that did not come. The mix is known. The baseline, every expert at its task's share, learns nothing. The best
blend for a mix is found by search on the truth, for every fifth slot. Constants were chosen on seeds 100 to 105,
and those of the lift on 130 to 139.

`--flat` plays worlds in which there is little to learn: in the online comparison (`docs/online.md`), a task of the
MiniLM-MoE merged by regression earns about .03·h more when its own expert's weight rises by h on the scale of `rise`.

`--bound` asks what the noise allows: a learner that knows the truth's own kernel and prior mean and may explore in all
slots at no cost, then takes for each mix the blend of highest posterior mean. It scatters its
blends around the baseline; a router that looks only where it pays can do better.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from tanbr.lab.paper.reward_maps import BestBlends
from tanbr.lab.tasks.traffic import mixes as task_mixes
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.router.gp import correlation
from tanbr.router.panel import rise
from tanbr.types import FloatArray

FOLDER = Path(__file__).parents[1] / "docs" / "results" / "router" / "harm"
OTHERS = {  # surveys that no constant was chosen on
    "earlier model, average": FOLDER.parents[1] / "online-glue" / "survey.json",
    "earlier model, regression": FOLDER.parents[1] / "online-glue" / "survey-regression.json",
}
REQUESTS, EVERY, LEVEL = 64, 5, 0.04
LEVELS = np.array([0.74, 0.82, 0.72, 0.85, 0.76, 0.62, 0.76, 0.60])  # about what GLUE's tasks earn
FLAT = {"flat": (0.04, 0.0), "nearly flat": (0.04, 0.02), "low hills": (0.15, 0.03)}  # lift, deviation of the hills
SPANS = {"0-50": (0, 50), "50-100": (50, 100), "100-200": (100, 200)}
BEFORE = {  # the settings for requests before there was a baseline
    "baseline": "none", "prior": "slots", "noise": 0.4, "beta": 1.0,
}  # fmt: skip
ROUTERS: dict[str, dict[str, Any]] = {
    "tanbr": {},
    "without a baseline": BEFORE,
    "without the budget": {"budget": 1.0},
}


class Truth:
    """A smooth map through a table of noisy rewards: blends (n, K) to mean rewards (n, V)."""

    def __init__(self, blends: FloatArray, rewards: FloatArray, rows: int) -> None:
        self.blends = blends
        found: tuple[float, dict[str, float], FloatArray] = (-np.inf, {}, np.zeros(0))
        for width, variance, noise, lift in product(
            (0.5, 0.7, 1, 1.4), (0.02, 0.04, 0.08, 0.16), (0.2, 0.3), (0.2, 0.4, 0.6)
        ):
            kernel = LEVEL + variance * correlation(blends, blends, width) + noise**2 / rows * np.eye(len(blends))
            factor = np.linalg.cholesky(kernel)
            white = np.linalg.solve(factor, rewards - self._centre(blends, lift))
            likelihood = -0.5 * (white**2).sum() - rewards.shape[1] * np.log(np.diag(factor)).sum()
            if likelihood > found[0]:
                fit = {"width": width, "variance": variance, "noise": noise, "lift": lift}
                found = likelihood, fit, np.linalg.solve(factor.T, white)
        _, self.fit, self._alpha = found

    @staticmethod
    def _centre(blends: FloatArray, lift: float) -> FloatArray:
        return 0.5 + lift * (1.3 * blends / (blends + 0.3) - 0.382)  # experts are in the tasks' order

    def prior(self, blends: FloatArray) -> FloatArray:
        """What the fit expects of blends before any row was measured."""
        return self._centre(blends, self.fit["lift"])

    def kernel(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """The fitted kernel of blends (n, K) and (m, K)."""
        return LEVEL + self.fit["variance"] * correlation(left, right, self.fit["width"])

    def __call__(self, blends: FloatArray) -> FloatArray:
        """Mean rewards."""
        return np.clip(self.prior(blends) + self.kernel(blends, self.blends) @ self._alpha, 0.0, 1.0)


class Flat:
    """Rewards that rise a little with the weight of a task's own expert, and have small hills besides."""

    def __init__(self, lift: float, deviation: float) -> None:
        rng = np.random.default_rng(0)
        self.blends = rng.dirichlet(np.full(len(LEVELS), 0.4), 300)
        self.fit = {"lift": lift, "deviation": deviation, "width": 0.7}
        kernel = correlation(self.blends, self.blends, 0.7) + 1e-6 * np.eye(300)
        heights = np.linalg.cholesky(kernel) @ rng.normal(size=(300, len(LEVELS)))
        self._alpha = deviation * np.linalg.solve(kernel, heights)

    def __call__(self, blends: FloatArray) -> FloatArray:
        """Mean rewards."""
        hills = correlation(blends, self.blends, 0.7) @ self._alpha
        return np.clip(LEVELS + self.fit["lift"] * (rise(blends) - 0.7) + hills, 0.0, 1.0)


class World:
    """A truth and a stream of mixes."""

    def __init__(self, truth: Truth | Flat, search: BestBlends, *, seed: int, slots: int) -> None:
        self.truth, self.seed = truth, seed
        self.tasks = truth(truth.blends[:1]).shape[1]
        self.mixes = task_mixes("dirichlet", tasks=self.tasks, slots=slots, seed=seed, alpha=0.3)
        self.baseline = (truth(self.mixes) * self.mixes).sum(axis=1)
        self.best = np.array([search.value(mix) for mix in self.mixes[::EVERY]])  # (T / EVERY,)

    def run(self, router: Tanbr) -> tuple[FloatArray, int]:
        """Play every slot: the expected rewards (T,), and how often the blend changed."""
        rng, earned, blends = np.random.default_rng([self.seed, 9]), np.zeros(len(self.mixes)), []
        for t, mix in enumerate(self.mixes):
            decision = router.ask(mix)
            mean = self.truth(decision.blend[None])[0]
            earned[t] = mix @ mean
            blends.append(decision.blend)
            counts = rng.multinomial(REQUESTS, mix)
            right = rng.binomial(counts, mean)
            router.tell(decision, np.where(counts > 0, right / np.maximum(counts, 1), np.nan), counts)
        return earned, int((np.diff(blends, axis=0) != 0).any(axis=1).sum())


def figures(worlds: list[World], make: Callable[[int], Tanbr]) -> dict[str, Any]:
    """Say what a router's runs come down to: points above the baseline, and how far the way to the best blend is."""
    played = [(world, *world.run(make(world.seed))) for world in worlds]
    above = np.array([earned - world.baseline for world, earned, _ in played])  # (seeds, T)
    room = np.array([world.best - world.baseline[::EVERY] for world, *_ in played])
    late = slice(150 // EVERY, 200 // EVERY)
    cost = above.cumsum(axis=1) / np.array([world.baseline.cumsum() for world, *_ in played])
    return {
        **{f"points {name}": round(100 * above[:, a:b].mean(), 2) for name, (a, b) in SPANS.items()},
        "points 0-50, worst seed": round(100 * above[:, :50].mean(axis=1).min(), 2),
        "way to the best, slots 150-200": round(above[:, ::EVERY][:, late].sum() / room[:, late].sum(), 2),
        "room, slots 150-200": round(100 * room[:, late].mean(), 2),
        "lowest share of the baseline's sum, from slot 50, worst seed": round(100 * cost[:, 50:].min(), 2),
        "share of seeds below -1% at some slot from 50 on": round(float((cost[:, 50:] < -0.01).any(axis=1).mean()), 2),
        "swaps a slot": round(float(np.mean([swaps for *_, swaps in played])) / above.shape[1], 2),
        "curve": np.round(100 * above.mean(axis=0).reshape(-1, 10).mean(axis=1), 2).tolist(),
        "curves": np.round(100 * above.reshape(len(above), -1, 10).mean(axis=2), 2).tolist(),
    }


def informed(world: World, search: BestBlends, *, requests: int, spread: float) -> float:
    """The way to the best blend that one comes who knows the kernel, after all slots were spent on exploration.

    In a slot the blend is the baseline with a share `spread` of a random blend.
    """
    assert isinstance(world.truth, Truth)
    truth, rng, late = world.truth, np.random.default_rng([world.seed, 10]), slice(150 // EVERY, 200 // EVERY)
    random = rng.dirichlet(np.full(truth.blends.shape[1], 0.3), size=len(world.mixes))
    told = (1 - spread) * world.mixes + spread * random  # (T, K)
    counts = np.array([rng.multinomial(requests, mix) for mix in world.mixes])  # (T, V)
    rewards = rng.binomial(counts, truth(told)) / np.maximum(counts, 1)
    blends = search.blends
    expected, rows = truth.prior(blends), truth.kernel(blends, told)
    inner, errors = truth.kernel(told, told), rewards - truth.prior(told)
    for task in range(world.tasks):
        seen = counts[:, task] > 0
        noise = np.diag(0.2 / counts[seen, task])  # the usual variance of right or wrong
        solved = np.linalg.solve(inner[np.ix_(seen, seen)] + noise, errors[seen, task])
        expected[:, task] += rows[:, seen] @ solved
    mixes = world.mixes[::EVERY][late]
    found = blends[(expected @ mixes.T).argmax(axis=0)]
    earned = (truth(found) * mixes).sum(axis=1) - world.baseline[::EVERY][late]
    return float(earned.sum() / (world.best - world.baseline[::EVERY])[late].sum())


def bound(worlds: list[World], search: BestBlends) -> dict[str, dict[str, float]]:
    """For several numbers of requests a slot, the best of three ways to explore: mean over worlds and its error."""
    found = {}
    for requests in (REQUESTS, 10 * REQUESTS, 100 * REQUESTS):
        ways = np.array(
            [[informed(w, search, requests=requests, spread=s) for w in worlds] for s in (0.15, 0.3, 0.6)]
        )  # (3, seeds)
        best = ways[ways.mean(axis=1).argmax()]
        error = float(best.std(ddof=1) / np.sqrt(len(best))) if len(best) > 1 else float("nan")
        found[str(requests)] = {"way": round(float(best.mean()), 3), "error": round(error, 3)}
    return found


def tables(held: bool) -> dict[str, Truth | Flat]:
    """The tables of the study, or those that no constant was chosen on."""
    if held:
        found = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in OTHERS.items()}
    else:
        found = json.loads((FOLDER / "tables.json").read_text(encoding="utf-8"))["tables"]
    return {name: Truth(np.array(t["blends"]), np.array(t["rewards"]), t["rows"]) for name, t in found.items()}


def draw(results: dict[str, dict[str, Any]], path: Path) -> None:
    """Points above the baseline over time, a panel per table."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, row = pyplot.subplots(1, len(results), figsize=(11, 4), layout="constrained", sharey=True, squeeze=False)
    for axes, (table, routers) in zip(row[0], results.items(), strict=True):
        for name, values in routers.items():
            at = 10 * np.arange(len(values["curve"])) + 5
            line = axes.plot(at, values["curve"], label=name, linewidth=2.5 if name == "tanbr" else 1.2)[0]
            if name == "tanbr":
                low, high = np.quantile(values["curves"], [0.1, 0.9], axis=0)
                axes.fill_between(at, low, high, color=line.get_color(), alpha=0.15, label="tanbr, 80% of seeds")
        axes.axhline(0, color="black", linewidth=1)
        axes.set(title=table, xlabel="slot", ylabel="points above the baseline")
        axes.grid(alpha=0.3)
    row[0][-1].legend(fontsize=8)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run the study and print its figures; `--out` keeps them as JSON with a picture beside it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--first", type=int, default=0, help="first seed; constants were chosen on 100 to 105 and 130 to 139"
    )
    parser.add_argument("--slots", type=int, default=200, help="a multiple of 10, at least 200")
    parser.add_argument("--held", action="store_true", help="the tables that no constant was chosen on")
    parser.add_argument("--flat", action="store_true", help="worlds in which there is little to learn")
    parser.add_argument("--routers", default=",".join(ROUTERS), help="which, by name, between commas")
    parser.add_argument("--bound", action="store_true", help="what the noise allows, instead of routers")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.flat and options.bound:
        parser.error("--bound needs tables of real blends")
    results: dict[str, dict[str, Any]] = {}
    fits = {}
    worlds_of = {name: Flat(*shape) for name, shape in FLAT.items()} if options.flat else tables(options.held)
    for name, truth in worlds_of.items():
        search = BestBlends(truth, experts=truth.blends.shape[1], max_active=truth.blends.shape[1], seed=0)
        seeds = range(options.first, options.first + options.seeds)
        worlds = [World(truth, search, seed=seed, slots=options.slots) for seed in seeds]
        fits[name], own = truth.fit, tuple(range(worlds[0].tasks))
        if options.bound:
            results[name] = bound(worlds, search)
            print(name, "| way to the best, by requests a slot", results[name], flush=True)
            continue
        for router in options.routers.split(","):
            config = RouterConfig.model_validate({"default": ROUTERS[router]}).of_requests(own)
            size = truth.blends.shape[1], len(own)
            made = figures(worlds, lambda seed, c=config, s=size: Tanbr(*s, seed=seed, config=c))  # type: ignore[misc]
            results.setdefault(name, {})[router] = made
            print(name, "|", router, {k: v for k, v in made.items() if not k.startswith("curve")}, flush=True)
    if options.out:
        head = {"command": "python " + " ".join(sys.argv), "python": platform.python_version(), "numpy": np.__version__}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({**head, "fits": fits, "results": results}) + "\n", encoding="utf-8")
        if not options.bound:
            draw(results, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
