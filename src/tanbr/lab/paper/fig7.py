"""Fig. 7: how Algorithm 1's constants ρ and η change the tuning of a T5-MoE."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from tanbr.lab.paper import claim, tuning
from tanbr.lab.paper.claim import Claim, Findings, Part, Results, Table
from tanbr.lab.paper.job import Job
from tanbr.lab.paper.setup import Setup
from tanbr.lab.pictures import line_chart, smooth
from tanbr.router.config import PaperModeConfig
from tanbr.types import FloatArray

RHOS, ETAS = (0.3, 0.5, 0.7, 0.9), (1e-4, 1e-3, 1e-2, 1e-1)
SWEPT = {"rho": ("rho", RHOS), "eta": ("learning_rate", ETAS)}  # the letter → our name for it, its values


def jobs(setup: Setup) -> list[Job]:
    """One job a value and seed."""
    found = [
        tuning.job(setup, "paper", seed, name=_named(letter, value), serve=False, **_changed(field, value))
        for letter, (field, values) in SWEPT.items()
        for value in values
        for seed in setup.scale.swept_seeds
    ]
    return list({job.name: job for job in found}.values())


def _changed(field: str, value: float) -> dict[str, float]:
    return {} if value == PaperModeConfig.model_fields[field].default else {field: value}


def _named(letter: str, value: float) -> str:
    """Name the runs of a value; both defaults are the same run."""
    field, _ = SWEPT[letter]
    is_default = value == PaperModeConfig.model_fields[field].default
    return "paper-defaults" if is_default else f"paper-{letter}{value:g}"


def findings(setup: Setup, results: Results) -> Findings:
    """Compare the start, the end and the unrest of the curves."""
    seeds = setup.scale.swept_seeds

    def curves(letter: str, value: float) -> FloatArray:  # (seeds, n)
        return np.array([results[f"tuning-{_named(letter, value)}-seed{seed}"]["losses"] for seed in seeds])

    count = curves("rho", RHOS[0]).shape[1]
    early, late = slice(0, max(1, count // 4)), slice(count - max(1, count // 4), count)
    start = [float(curves("rho", rho)[:, early].mean()) for rho in RHOS]
    end = [float(curves("rho", rho)[:, late].mean()) for rho in RHOS]
    fast = [float(curves("eta", eta)[:, : count // 2].mean()) for eta in ETAS]
    unrest = [float(np.diff(curves("eta", eta), axis=1)[:, count // 2 :].std()) for eta in ETAS]
    claims = [
        Claim(
            "a smaller ρ starts faster", "shorter random phase, no figure given", _shown(RHOS, start),
            claim.checks({"lower loss in the first quarter at ρ = 0.3 than at 0.9": start[0] < start[-1],
                          "the loss rises with ρ": _rank(RHOS, start) > 0.5}), seeds=seeds,
        ),
        Claim(
            "a smaller ρ ends worse", "lower final performance, no figure given", _shown(RHOS, end),
            claim.checks({"higher loss in the last quarter at ρ = 0.3 than at 0.9": end[0] > end[-1],
                          "the loss falls as ρ rises": _rank(RHOS, end) < -0.5}), seeds=seeds,
        ),
        Claim(
            "a larger η converges faster", "faster, no figure given", _shown(ETAS, fast),
            claim.checks({"lower loss in the first half at η = 0.1 than at 1e-4": fast[-1] < fast[0],
                          "the loss falls as η rises": _rank(ETAS, fast) < -0.5}),
            "a step of η that raises the router's loss is undone and halved here: see docs/paper.md", seeds,
        ),
        Claim(
            "a larger η is less stable", "may be unstable, no figure given", _shown(ETAS, unrest),
            claim.checks({"the loss moves more from batch to batch at η = 0.1 than at 1e-4": unrest[-1] > unrest[0]}),
            "standard deviation of the change from one point of the curve to the next, in the second half", seeds,
        ),
    ]  # fmt: skip
    spread = max(end) - min(end)
    noise = float(np.mean([curves("rho", rho)[:, late].mean(axis=1).std() for rho in RHOS]))
    rows = [[f"ρ = {rho}", f"{a:.3f}", f"{b:.3f}"] for rho, a, b in zip(RHOS, start, end, strict=True)]
    rows += [
        [f"η = {eta:g}", f"{curves('eta', eta)[:, early].mean():.3f}", f"{curves('eta', eta)[:, late].mean():.3f}"]
        for eta in ETAS
    ]
    title = f"loss while tuning; in the last quarter values of ρ differ by {spread:.3f}, seeds by {noise:.3f}"
    table = Table(title, ["", "first quarter", "last quarter"], rows)
    pictures = {f"Sensitivity to {letter}": draw(results, seeds, letter) for letter in SWEPT}
    return Findings(claims, [table], pictures)


def _shown(values: Sequence[float], found: Sequence[float]) -> str:
    return ", ".join(f"{value:g}: {one:.3f}" for value, one in zip(values, found, strict=True))


def _rank(values: Sequence[float], found: Sequence[float]) -> float:
    """Give Spearman's correlation; 0 where all are alike."""
    if np.ptp(found) == 0:
        return 0.0
    return float(np.corrcoef(np.argsort(np.argsort(values)), np.argsort(np.argsort(found)))[0, 1])


def draw(results: Results, seeds: tuple[int, ...], letter: str) -> Figure:
    """Draw the curves of each value of ρ or η."""
    series = {}
    for value in SWEPT[letter][1]:
        runs = [results[f"tuning-{_named(letter, value)}-seed{seed}"] for seed in seeds]
        mean = np.mean([run["losses"] for run in runs], axis=0)
        series[f"{letter} = {value:g}"] = runs[0]["steps"], smooth(mean, max(1, len(mean) // 8))
    return line_chart(series, title=f"loss, by {letter}, mean over seeds", xlabel="step")


PART = Part(
    "fig7",
    "Fig. 7: sensitivity to ρ and η",
    "Algorithm 1 as printed, tuning as in Fig. 2, one constant changed at a time; the other has its default "
    "(ρ = 0.5, η = 1e-3).",
    jobs,
    findings,
    needs=("t5", "data"),
)
