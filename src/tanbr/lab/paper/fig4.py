"""Fig. 4: online reward of Tanbr and NUCB on BERT, and what all merges earn once learning is over."""

import numpy as np
from matplotlib.figure import Figure

from tanbr.lab.intervals import Spread
from tanbr.lab.paper import claim, online
from tanbr.lab.paper.claim import Claim, Findings, Part, Results, Table
from tanbr.lab.paper.setup import Setup
from tanbr.lab.pictures import AREAS, LINES, figure, name_below, smooth, styled

PAPER_SLOTS = 5_000
GAIN = {"fixed": "up to 9% above the baselines", "dynamic": "5–10% above the baselines"}


def findings(setup: Setup, results: Results) -> Findings:
    """Compare Algorithm 1 and the default mode with NUCB while they learn, and with all rivals after."""
    scale, seeds = setup.scale, setup.scale.seeds
    claims = []
    early = max(1, scale.slots // 10)
    for ours, words in online.OURS.items():
        own, nucb = (online.rewards(setup, results, "dynamic", name) for name in (ours, "nucb"))
        start = Spread.of((nucb - own)[:, :early].mean(axis=1).tolist())
        end = Spread.of((own - nucb)[:, scale.slots :].mean(axis=1).tolist())
        claims += [
            Claim(
                f"at first Tanbr earns less than NUCB ({words})", "less, no figure given",
                f"{(-start.mean) * 100:+.1f} points over the first {early} slots", claim.above(start),
                f"few candidate blends at first, says the paper; {scale.slots} slots of learning here", seeds,
            ),
            Claim(
                f"in the end Tanbr earns more than NUCB ({words})", "more, no figure given",
                f"{end.words(factor=100)} points over the last {scale.after} slots", claim.above(end),
                f"after {scale.slots} slots of learning; the paper has {PAPER_SLOTS:,}", seeds,
            ),
        ]  # fmt: skip
    for mix, paper in GAIN.items():
        for ours, words in online.OURS.items():
            claims.append(_against_all(setup, results, mix, ours, words, paper))
    tables = [_table(setup, results, mix) for mix in online.TRAFFIC]
    pictures = {
        "Online reward while learning, moving mix": draw_learning(setup, results),
        "Average reward once learning is over": draw_after(setup, results),
    }
    return Findings(claims, tables, pictures)


def _against_all(setup: Setup, results: Results, mix: str, ours: str, words: str, paper: str) -> Claim:
    own = online.after(setup, results, mix, ours)
    rivals = {name: online.after(setup, results, mix, name) for name in online.RIVALS}
    gains = {name: float(own.mean() / other.mean() - 1) for name, other in rivals.items()}
    best = max(rivals, key=lambda name: rivals[name].mean())
    difference = Spread.of((own - rivals[best]).tolist())
    shown = ", ".join(f"{gain:+.1%} {name}" for name, gain in gains.items())
    return Claim(
        f"{mix} mix, after learning: Tanbr is above every other merge ({words})", paper, shown,
        claim.above(difference), f"the best rival is {best}: {difference.words(factor=100)} points", setup.scale.seeds,
    )  # fmt: skip


def _table(setup: Setup, results: Results, mix: str) -> Table:
    rows = []
    for name in online.METHODS:
        late = online.after(setup, results, mix, name)
        first = online.rewards(setup, results, mix, name)[:, : setup.scale.slots]
        rows.append([name, f"{first.mean():.3f}", f"{late.mean():.3f}", ", ".join(f"{v:.3f}" for v in late)])
    return Table(f"mean reward, {mix} mix", ["method", "while learning", "after", "after, by seed"], rows)


@styled
def draw_learning(setup: Setup, results: Results) -> Figure:
    """Draw the reward over slots, mean over seeds."""
    canvas, (axis,) = figure(height=3.0)
    window = max(1, (setup.scale.slots + setup.scale.after) // 12)
    for (name, label), colour in zip({**online.OURS, "nucb": "NUCB"}.items(), LINES, strict=False):
        mean = online.rewards(setup, results, "dynamic", name).mean(axis=0)
        axis.plot(smooth(mean, window), color=colour, label=label, lw=1.8)
    axis.axvline(setup.scale.slots, color="0.6", lw=0.8, ls=":")
    axis.set(title=f"Reward, mean of the last {window} slots", xlabel="slot")
    name_below(canvas)
    return canvas


@styled
def draw_after(setup: Setup, results: Results) -> Figure:
    """Draw bars: every method under both mixes, and each seed as a dot."""
    canvas, (axis,) = figure(height=3.0)
    for i, mix in enumerate(online.TRAFFIC):
        for n, name in enumerate(online.METHODS):
            values = online.after(setup, results, mix, name)
            at = n + (i - 0.5) * 0.38
            axis.bar(at, values.mean(), width=0.36, color=AREAS[4 if i else 0], label=f"{mix} mix" if n == 0 else None)
            axis.plot(np.full(len(values), at), values, ".", color=LINES[1], ms=4)
    axis.set_xticks(range(len(online.METHODS)), online.METHODS)
    axis.set(title="Mean reward after learning; dots: seeds")
    name_below(canvas)
    return canvas


PART = Part(
    "fig4",
    "Fig. 4: learning online on a BERT-MoE",
    "Untagged requests; every method serves one merged model in each slot. “paper” is Algorithm 1 as printed, “tanbr” "
    "the router of this project. Routers go on learning in the last slots, which the paper evaluates.",
    online.jobs,
    findings,
    needs=("model", "data"),
)
