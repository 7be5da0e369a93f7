"""Theorem 1 and the lemmas: how fast the summed regret really grows, against the bound, with K and V swept."""

from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tanbr.lab.intervals import Spread
from tanbr.lab.paper import claim
from tanbr.lab.paper.claim import Claim, Findings, Part, Results, Table
from tanbr.lab.paper.job import Job, Tick
from tanbr.lab.paper.setup import Setup
from tanbr.lab.pictures import line_chart
from tanbr.lab.rivals import build
from tanbr.lab.studies.reward_maps import BestBlends, bumps
from tanbr.router.config import PaperModeConfig
from tanbr.router.paper import unit
from tanbr.router.tanbr import Tanbr
from tanbr.router.theory import (
    depth_bound,
    effective_dimension,
    growth_exponent,
    leaves_bound,
    neural_tangent_kernel,
    regret_bound,
)
from tanbr.types import FloatArray

SWEPT = ((4, 8), (8, 8), (16, 8), (8, 2), (8, 16))  # K and V
ROUTERS = ("paper", "tanbr", "random")  # Algorithm 1, the default mode, and what learns nothing
NOISE = 0.05
KERNEL = 200  # blends behind the effective dimension; more takes long and changes little
LIMIT = 10**12  # slots at which the printed bound's growth is looked at
CURVE = 100  # points of a kept curve


def jobs(setup: Setup) -> list[Job]:
    """Make one job for each router, K, V and seed."""
    slots = setup.scale.regret_slots
    return [
        Job(
            f"theorem1-{router}-K{experts}-V{tasks}-seed{seed}",
            partial(_measure, router, experts, tasks, slots, seed),
            {"router": router, "experts": experts, "tasks": tasks, "slots": slots, "seed": seed, "noise": NOISE},
        )
        for experts, tasks in SWEPT
        for router in ROUTERS
        for seed in setup.scale.regret_seeds
    ]


def _measure(name: str, experts: int, tasks: int, slots: int, seed: int, tick: Tick) -> dict[str, Any]:
    """Play noisy rewards of smooth bumps under mixes that move; regret is against the best blend of each slot."""
    rng = np.random.default_rng((seed, experts, tasks))
    truth = bumps(experts, tasks, rng)
    corners = rng.dirichlet(np.full(tasks, 0.5), size=4)
    mixes = corners[(np.arange(slots) // 50) % 4]
    search = BestBlends(truth, experts=experts, max_active=experts, seed=seed)
    best = np.array([search.value(mix) for mix in corners])[(np.arange(slots) // 50) % 4]
    router = build(name, experts, tasks, seed=seed)
    regret, blends = np.empty(slots), np.empty((slots, experts))
    for t, mix in enumerate(mixes):
        if t % 50 == 0:
            tick(t, slots, f"{name}, K = {experts}, V = {tasks}")
        decision = router.ask(mix)
        mean = truth(decision.blend[None])[0]
        regret[t], blends[t] = max(0.0, best[t] - mix @ mean), decision.blend
        router.tell(decision, np.clip(mean + NOISE * rng.normal(size=tasks), 0.0, 1.0))
    marks = np.unique(np.linspace(0, slots - 1, CURVE).astype(int))
    found: dict[str, Any] = {
        "exponent": growth_exponent(regret, skip=min(50, slots // 4)),
        "regret": float(regret.mean()),
        "late_regret": float(regret[-slots // 4 :].mean()),
        "at": marks + 1,
        "curve": np.round(np.cumsum(regret)[marks], 4),
    }
    if name == "paper" and isinstance(router, Tanbr):
        found |= _lemmas(router, blends, slots)
    return found


def _lemmas(router: Tanbr, blends: FloatArray, slots: int) -> dict[str, float]:
    """Compare tree and regret with what the paper bounds them by."""
    config, tree = PaperModeConfig(), router.tree
    leaves = int((~np.isin(np.arange(len(tree)), tree.parent)).sum())
    chosen = np.unique(np.round(blends, 6), axis=0)
    few = chosen[:: max(1, len(chosen) // KERNEL)][:KERNEL]
    dimension = effective_dimension(neural_tangent_kernel(unit(few)))

    def bound(T: int) -> float:  # with as many steps as the remark below the theorem asks for
        enough = config.model_copy(update={"steps": T * config.layers, "delta": 0.1})
        return regret_bound(T, enough, effective_dimension=dimension, leaves=leaves_bound(T, config))

    return {
        "depth": int(tree.depth.max()),
        "depth_bound": depth_bound(slots, config),
        "leaves": leaves,
        "leaves_bound": leaves_bound(slots, config),
        "effective_dimension": dimension,
        "bound": bound(slots),
        "bound_exponent": float(np.log2(bound(2 * LIMIT) / bound(LIMIT))),
    }


def findings(setup: Setup, results: Results) -> Findings:
    """Judge exponents over all K, V and seeds."""
    slots, seeds = setup.scale.regret_slots, setup.scale.regret_seeds

    def found(router: str, key: str, swept: tuple[tuple[int, int], ...] = SWEPT) -> list[float]:
        return [results[f"theorem1-{router}-K{k}-V{v}-seed{s}"][key] for k, v in swept for s in seeds]

    claims = []
    root = 0.5 + 1 / np.log(slots)  # slope of √T log T at T
    for router, words in (("paper", "Algorithm 1 as printed"), ("tanbr", "this project's default mode")):
        exponent = Spread.of(found(router, "exponent"))
        shown = f"exponent {exponent.mean:.2f} ± {exponent.half:.2f} ({words})"
        claims.append(Claim(
            f"the summed regret is sublinear: {words}", "exponent below 1", shown,
            claim.above(Spread(1 - exponent.mean, exponent.half)),
            f"over {slots} slots on smooth maps, which proves nothing of the limit; in the last quarter it loses "
            f"{np.mean(found(router, 'late_regret')):.3f} per slot, random choice "
            f"{np.mean(found('random', 'late_regret')):.3f}", seeds,
        ))  # fmt: skip
        claims.append(Claim(
            f"regret grows as √T log T: {words}", f"exponent {root:.2f} at T = {slots}", shown,
            claim.checks({f"mean exponent at most {root:.2f}": exponent.mean <= root,
                          "mean exponent below 1": exponent.mean < 1}), seeds=seeds,
        ))  # fmt: skip
    bound = Spread.of(found("paper", "bound_exponent"))
    claims.append(Claim(
        "Theorem 1's right-hand side is sublinear", "O(d̃ √T log T)",
        f"as printed it grows with exponent {bound.mean:.4f} at {LIMIT:.0e} slots",
        claim.checks({"exponent of the printed bound below 0.99": bound.mean < 0.99}),
        "it carries a bare + T + 1; the sum that this stands for is sublinear only while chosen leaves get deeper",
        seeds,
    ))  # fmt: skip
    held = [r <= b for r, b in zip(_totals(results, slots, seeds), found("paper", "bound"), strict=True)]
    claims.append(Claim(
        "the regret stays below the bound", "with probability 1 − δ", f"{sum(held)} of {len(held)} runs",
        claim.checks({"regret below the bound in every run": all(held)}), "the bound is loose", seeds,
    ))  # fmt: skip
    deep = max(np.subtract(found("paper", "depth"), found("paper", "depth_bound")))
    many = max(np.divide(found("paper", "leaves"), found("paper", "leaves_bound")))
    claims.append(Claim(
        "Lemmas: depth O(log T), leaves N", "depth and leaves below their bounds",
        f"deepest node {abs(deep):.1f} levels {'less deep' if deep <= 0 else 'deeper'} than the bound, at most "
        f"{many:.0%} of the leaves that are allowed",
        claim.checks({"at most a level deeper than the bound": deep <= 1, "no more leaves than N": many <= 1}),
        "the bound counts expanded nodes, whose children lie one level deeper", seeds,
    ))  # fmt: skip
    rows = [
        [f"K = {k}, V = {v}", *(f"{Spread.of(found(r, 'exponent', ((k, v),))).mean:.2f}" for r in ROUTERS)]
        + [f"{np.mean(found(r, 'late_regret', ((k, v),))):.3f}" for r in ROUTERS]
        for k, v in SWEPT
    ]
    header = ["", *(f"exponent, {r}" for r in ROUTERS), *(f"late regret, {r}" for r in ROUTERS)]
    table = Table("growth exponents, and regret per slot over the last quarter", header, rows)
    return Findings(claims, [table], {"Summed regret, K = 8, V = 8, mean over seeds": draw(results, seeds)})


def _totals(results: Results, slots: int, seeds: tuple[int, ...]) -> list[float]:
    return [results[f"theorem1-paper-K{k}-V{v}-seed{s}"]["regret"] * slots for k, v in SWEPT for s in seeds]


def draw(results: Results, seeds: tuple[int, ...]) -> Figure:
    """Draw the summed regret over slots, both axes logarithmic: a slope below 1 is sublinear."""
    series: dict[str, Any] = {}
    for router in ROUTERS:
        runs = [results[f"theorem1-{router}-K8-V8-seed{seed}"] for seed in seeds]
        mean = np.mean([run["curve"] for run in runs], axis=0)
        series[router] = runs[0]["at"], np.maximum(mean, 1e-3)
    at = np.array(runs[0]["at"], dtype=float)
    series["slope 1"] = at, mean[-1] * at / at[-1]
    return line_chart(series, title="Summed regret", xlabel="slot", xscale="log", yscale="log")


PART = Part(
    "theorem1",
    "Theorem 1 and the lemmas: sublinear regret",
    "Noisy rewards of a smooth map whose best blend is known, under mixes that move, for several K and V. The growth "
    "exponent is the slope of log R over log t.",
    jobs,
    findings,
)
