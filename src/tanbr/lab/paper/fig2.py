"""Fig. 2: loss and time while a T5-MoE's norms are tuned, for five ways to choose experts."""

import numpy as np
from matplotlib.figure import Figure

from tanbr.lab.intervals import Spread
from tanbr.lab.paper import claim, tuning
from tanbr.lab.paper.claim import Claim, Findings, Part, Results, Table
from tanbr.lab.paper.setup import Setup
from tanbr.lab.pictures import line_chart, smooth
from tanbr.types import FloatArray

LESS_TIME, MORE_TIME = 0.40, 20  # than RL and Switch; SMEAR's


def findings(setup: Setup, results: Results) -> Findings:
    """Compare losses at the start and in the end, and what a step takes."""
    seeds = setup.scale.tuning_seeds
    count = len(results[f"tuning-paper-seed{seeds[0]}"]["losses"])
    first, last = slice(0, max(1, count // 10)), slice(count - max(1, count // 4), count)
    rivals = tuple(tuning.RIVALS)

    def losses(router: str, part: slice) -> FloatArray:
        return tuning.by_seed(results, setup, router, lambda run: tuning.loss(run, part))

    claims = []
    for ours, words in tuning.OURS.items():
        start = {rival: float((losses(ours, first) - losses(rival, first)).mean()) for rival in rivals}
        claims.append(Claim(
            f"Tanbr starts with a higher loss than the others ({words})", "higher, no figure given",
            ", ".join(f"{gap:+.3f} {rival}" for rival, gap in start.items()),
            claim.checks({f"higher than {rival}": gap > 0 for rival, gap in start.items()}),
            "mean of the first tenth of the steps", seeds,
        ))  # fmt: skip
        best = min(rivals, key=lambda rival: losses(rival, last).mean())
        gap = Spread.of((losses(best, last) - losses(ours, last)).tolist())
        claims.append(Claim(
            f"Tanbr ends with the lowest loss ({words})", "lower than all, no figure given",
            f"{losses(ours, last).mean():.3f}; " + ", ".join(f"{r} {losses(r, last).mean():.3f}" for r in rivals),
            claim.above(gap), f"mean of the last quarter of the steps; the best rival is {best}", seeds,
        ))  # fmt: skip
    claims += _times(setup, results)
    claims.append(Claim(
        "tuning with Tanbr takes about 10% more memory than with RL and Switch, SMEAR 179% more", "+10%, +179%", "–",
        claim.untested(), "the peak of a process that tunes one model after another is not a model's",
    ))  # fmt: skip
    rows = [
        [
            router, f"{losses(router, first).mean():.3f}", f"{losses(router, last).mean():.3f}",
            f"{1e3 * _seconds(setup, results, router):.0f}",
        ]
        for router in tuning.ROUTERS
    ]  # fmt: skip
    header = ["router", "loss at first", "loss in the end", f"{setup.clock.replace('time', 'ms')} per step"]
    table = Table("loss and time of tuning", header, rows)
    return Findings(claims, [table], {"Loss while norms are tuned, mean over seeds": draw(setup, results)})


def _seconds(setup: Setup, results: Results, router: str) -> float:
    """Take the median over seeds; a run that went on after its last step has no time of its own."""
    return float(np.nanmedian(tuning.by_seed(results, setup, router, lambda run: run["seconds_per_step"] or np.nan)))


def _times(setup: Setup, results: Results) -> list[Claim]:
    seconds = {router: _seconds(setup, results, router) for router in tuning.ROUTERS}
    tokens = (seconds["rl"] + seconds["switch"]) / 2
    claims = []
    for ours, words in {**tuning.OURS, "nucb": "NUCB"}.items():
        less = 1 - seconds[ours] / tokens
        claims.append(Claim(
            f"a step takes less time than with RL and Switch ({words})", "about −40%",
            f"{-less:+.0%} ({1e3 * seconds[ours]:.0f} ms against {1e3 * tokens:.0f} ms)",
            claim.reduction(less, LESS_TIME), f"medians over steps and seeds, {setup.clock}",
            setup.scale.tuning_seeds,
        ))  # fmt: skip
    times = seconds["smear"] / seconds["paper"]
    claims.append(Claim(
        "SMEAR's merging for every token takes 20 times as long", f"{MORE_TIME} times", f"{times:.1f} times",
        claim.checks({"more than 10 times as long": times > 10, "more than twice as long": times > 2}),
        "SMEAR's sums are computed as products of all experts here, which is the same and far cheaper",
        setup.scale.tuning_seeds,
    ))  # fmt: skip
    return claims


def draw(setup: Setup, results: Results) -> Figure:
    """Draw each router's loss."""

    def curve(router: str) -> tuple[list[int], FloatArray]:
        runs = [results[f"tuning-{router}-seed{seed}"] for seed in setup.scale.tuning_seeds]
        mean = np.mean([run["losses"] for run in runs], axis=0)
        return runs[0]["steps"], smooth(mean, max(1, len(mean) // 10))

    title = "Loss of the labelled batches, smoothed, on a logarithmic scale"
    return line_chart({router: curve(router) for router in tuning.ROUTERS}, title=title, xlabel="step", yscale="log")


PART = Part(
    "fig2",
    "Fig. 2: tuning the norms of a T5-MoE",
    "Every step has a labelled batch of a random task mix; only norms (and gates, where there are some) learn.",
    tuning.jobs,
    findings,
    needs=("t5", "data"),
)
