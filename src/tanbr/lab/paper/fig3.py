"""Fig. 3: average metric, time and memory of a tuned T5-MoE that serves untagged requests."""

import numpy as np

from tanbr.lab.intervals import Spread
from tanbr.lab.paper import claim, tuning
from tanbr.lab.paper.claim import Claim, Findings, Part, Results, Table
from tanbr.lab.paper.setup import Setup
from tanbr.lab.pictures import bar_chart

LESS_TIME = {"rl": 0.65, "switch": 0.65, "smear": 0.99}
LESS_MEMORY = 0.20


def findings(setup: Setup, results: Results) -> Findings:
    """Compare averages over tasks, CPU time per batch, and loaded parameters."""
    seeds = setup.scale.tuning_seeds
    means = {router: tuning.by_seed(results, setup, router, tuning.mean_figure) for router in tuning.ROUTERS}
    seconds = {router: _median(setup, results, router, "answer_seconds") for router in tuning.ROUTERS}
    loaded = {router: _median(setup, results, router, "parameters") for router in tuning.ROUTERS}
    best = max(tuning.RIVALS, key=lambda rival: means[rival].mean())
    claims = []
    for ours, words in tuning.OURS.items():
        gap = Spread.of((means[ours] - means[best]).tolist())
        claims.append(Claim(
            f"Tanbr has the best average over the tasks ({words})", "75.43, next best 75.10 (SMEAR)",
            f"{100 * means[ours].mean():.1f}, best rival {100 * means[best].mean():.1f} ({best})",
            claim.above(gap), f"{gap.words(factor=100)} points over {best}", seeds,
        ))  # fmt: skip
    for rival, paper in LESS_TIME.items():
        less = 1 - seconds["paper"] / seconds[rival]
        claims.append(Claim(
            f"a batch takes less time than with {tuning.RIVALS[rival]}", f"−{paper:.0%}",
            f"{-less:+.0%} ({1e3 * seconds['paper']:.0f} ms against {1e3 * seconds[rival]:.0f} ms)",
            claim.reduction(less, paper),
            f"{setup.clock} of writing the answers to a batch, in runs that were not side by side as Table I's are"
            + ("; SMEAR's sums are computed as products of all experts, which is far cheaper" * (rival == "smear")),
            seeds,
        ))  # fmt: skip
    less = 1 - loaded["paper"] / loaded["switch"]
    claims.append(Claim(
        "only the merged model is loaded", "−20% to −25% of memory",
        f"{-less:+.0%} of the parameters ({loaded['paper'] / 1e6:.2f}M of {loaded['switch'] / 1e6:.2f}M)",
        claim.reduction(less, LESS_MEMORY), "parameters alone; what a process holds in all is in Table I", seeds,
    ))  # fmt: skip
    rows = [
        [
            router, f"{100 * means[router].mean():.1f}", f"{1e3 * seconds[router]:.1f}",
            f"{1e3 * _median(setup, results, router, 'merge_seconds'):.1f}", f"{loaded[router] / 1e6:.2f}",
            f"{_median(setup, results, router, 'reward'):.3f}",
        ]
        for router in tuning.ROUTERS
    ]  # fmt: skip
    header = ["router", "average, points", "ms per batch", "ms per merge", "parameters, M", "reward"]
    table = Table("tuned models serving a stream, nothing learns any more", header, rows)
    points = {"tuned": {router: 100 * found for router, found in means.items()}}
    picture = bar_chart(points, title="Mean of the tasks' metrics, in points; dots: seeds")
    return Findings(claims, [table], {"Average over the tasks": picture})


def _median(setup: Setup, results: Results, router: str, key: str) -> float:
    return float(np.median(tuning.by_seed(results, setup, router, lambda run: run["served"][key])))


PART = Part(
    "fig3",
    "Fig. 3: a tuned T5-MoE serving",
    "The tuned models of Fig. 2 answer requests under a moving mix, whose tasks no router is told (with --tagged the "
    "texts name them, for the model); routers choose by the monitor's forecast, and nothing learns any more. Answers "
    "are written word by word and scored as written.",
    tuning.jobs,
    findings,
    needs=("t5", "data"),
)
