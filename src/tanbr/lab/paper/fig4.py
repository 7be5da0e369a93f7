"""Fig. 4: online reward of Tanbr and NUCB on BERT, and what all merges earn once learning is over."""

from matplotlib.figure import Figure

from tanbr.lab.intervals import Spread
from tanbr.lab.paper import claim, online
from tanbr.lab.paper.claim import Claim, Findings, Part, Results, Table
from tanbr.lab.paper.setup import Setup
from tanbr.lab.pictures import bar_chart, line_chart, smooth

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


def draw_learning(setup: Setup, results: Results) -> Figure:
    """Draw the reward over slots, mean over seeds."""
    window = max(1, (setup.scale.slots + setup.scale.after) // 12)
    series = {}
    for name, label in {**online.OURS, "nucb": "NUCB"}.items():
        mean = smooth(online.rewards(setup, results, "dynamic", name).mean(axis=0), window)
        series[label] = range(len(mean)), mean
    return line_chart(series, title=f"Reward, mean of the last {window} slots", xlabel="slot")


def draw_after(setup: Setup, results: Results) -> Figure:
    """Draw bars: every method under both mixes, and each seed as a dot."""
    groups = {
        f"{mix} mix": {name: online.after(setup, results, mix, name) for name in online.METHODS}
        for mix in online.TRAFFIC
    }
    return bar_chart(groups, title="Mean reward after learning; dots: seeds")


PART = Part(
    "fig4",
    "Fig. 4: learning online on a BERT-MoE",
    "Untagged requests; every method serves one merged model in each slot. “paper” is Algorithm 1 as printed, “tanbr” "
    "the router of this project. Routers go on learning in the last slots, which the paper evaluates.",
    online.jobs,
    findings,
    needs=("model", "data"),
)
