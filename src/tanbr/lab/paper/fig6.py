"""Fig. 6: update steps until the tree has 20 feasible leaves, and the time of a decision among them, K = 4 … 192."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from tanbr.lab.jobs import Job, Tick
from tanbr.lab.paper.claim import Claim, Findings, Part, Results, Table
from tanbr.lab.paper.setup import Setup
from tanbr.lab.pictures import line_chart
from tanbr.router.config import PaperModeConfig
from tanbr.router.paper import Algorithm1, PaperState
from tanbr.router.shell import Question
from tanbr.router.simplex import Sizes
from tanbr.types import FloatArray

TASKS, WIDTH, LEAVES, MOST = 8, 64, 20, 20_000
RHO, CONSTANT = 0.9, 0.3  # the paper gives no C, nor the ρ of this figure
EVEN = np.full(TASKS, 1 / TASKS)
ASKED = Question(0, EVEN)
LIMIT = 0.4  # milliseconds, the paper's at K = 192
REPEATS, LOOPS = 9, 30


def paper_router(experts: int) -> Algorithm1:
    """Make Algorithm 1 with the paper's width, λ, υ, δ and a diagonal Z."""
    config = PaperModeConfig(rho=RHO, width=WIDTH, steps=1, threshold_constant=CONSTANT)
    return Algorithm1(Sizes.check(experts, TASKS), config)


def random_reward(rng: np.random.Generator, blend: FloatArray) -> FloatArray:
    """Make up a smooth reward with noise; what it is does not matter here."""
    reward: FloatArray = np.clip(0.5 + 0.4 * np.cos(3 * blend[:TASKS].sum()) + 0.05 * rng.normal(size=TASKS), 0, 1)
    return reward


def steps_to_leaves(router: Algorithm1, *, seed: int = 0) -> tuple[PaperState, int]:
    """Play until the tree has LEAVES feasible leaves: the state then, and how many slots that took."""
    rng, own = (np.random.default_rng(seed) for _ in range(2))
    state = router.start(own)
    for slot in range(MOST):
        if len(state.tree.active_leaves) >= LEAVES:
            return state, slot
        decision = router.choose(state, ASKED, own)
        state = router.learn(state, decision, random_reward(rng, decision.blend)[None], np.ones((1, TASKS)), own)
    return state, MOST


def milliseconds(call: Callable[[], object], *, repeats: int = REPEATS, loops: int = LOOPS) -> dict[str, float]:
    """Take the median CPU time of a call over repeats, with quartiles."""
    call()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(loops):
            call()
        times.append(1e3 * (time.process_time() - start) / loops)
    low, middle, high = statistics.quantiles(times, n=4)
    return {"median": middle, "low": low, "high": high, "fastest": min(times)}


def jobs(setup: Setup) -> list[Job]:
    """Make one job for each number of experts."""
    return [
        Job(
            f"fig6-{experts}",
            partial(_measure, experts, setup.scale.seeds),
            {"experts": experts, "rho": RHO, "constant": CONSTANT, "seeds": list(setup.scale.seeds)},
        )
        for experts in setup.scale.experts
    ]


def _measure(experts: int, seeds: tuple[int, ...], tick: Tick) -> dict[str, Any]:
    steps = []
    for done, seed in enumerate(seeds):
        tick(done, len(seeds), f"K = {experts}")
        router = paper_router(experts)
        state, slots = steps_to_leaves(router, seed=seed)
        steps.append(slots)
    decide = partial(router.choose, state, ASKED, np.random.default_rng(0))
    return {"steps": steps, "leaves": len(state.tree.active_leaves), "decision": milliseconds(decide)}


def findings(setup: Setup, results: Results) -> Findings:
    """Say whether steps grow with K, and whether a decision stays below the paper's limit."""
    experts = setup.scale.experts
    found = [results[f"fig6-{k}"] for k in experts]
    steps = [statistics.mean(one["steps"]) for one in found]
    times = [one["decision"] for one in found]
    rank = float(spearmanr(experts, steps).statistic)
    claims = [
        Claim(
            "more experts need more update steps to 20 feasible leaves", "rising with K, no figure given",
            f"{steps[0]:.0f} at K = {experts[0]}, {steps[-1]:.0f} at K = {experts[-1]}, rank correlation {rank:.2f}",
            steps[-1] > steps[0] and rank > 0.7,
            "boxes of more dimensions are more often infeasible, so more splits are wasted",
        ),
        Claim(
            "a decision at the largest K takes below 0.4 ms", f"< {LIMIT} ms at K = 192",
            f"{times[-1]['median']:.3f} ms at K = {experts[-1]} "
            f"(quartiles {times[-1]['low']:.3f}–{times[-1]['high']:.3f})",
            times[-1]["median"] <= LIMIT, f"one CPU core, {LEAVES} leaves, width {WIDTH}",
        ),
        Claim(
            "a decision takes longer with more experts", "rising with K, no figure given",
            f"{times[0]['median']:.3f} ms at K = {experts[0]}, {times[-1]['median']:.3f} ms at K = {experts[-1]}",
            times[-1]["median"] > times[0]["median"],
        ),
    ]  # fmt: skip
    rows = [
        [str(k), f"{step:.0f}", f"{t['median']:.3f}", f"{t['low']:.3f}–{t['high']:.3f}"]
        for k, step, t in zip(experts, steps, times, strict=True)
    ]
    table = Table("Algorithm 1, one core", ["K", "steps to 20 leaves", "decision, ms", "quartiles"], rows)
    drawn = {
        "Steps against K": (steps, f"update steps to {LEAVES} leaves"),
        "Decision time against K": ([t["median"] for t in times], f"decision, ms; the paper has {LIMIT} at K = 192"),
    }
    pictures = {
        caption: line_chart({"Algorithm 1": (experts, values)}, title=title, xlabel="experts K")
        for caption, (values, title) in drawn.items()
    }
    return Findings(claims, [table], pictures)


PART = Part(
    "fig6",
    "Fig. 6: cost of the router against the number of experts",
    f"Algorithm 1 as printed (ρ = {RHO}, C = {CONSTANT}, which the paper does not give), on made-up rewards.",
    jobs,
    findings,
)
