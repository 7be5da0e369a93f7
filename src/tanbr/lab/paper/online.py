"""Fig. 4 and 5: online reward on a BERT-MoE, while routers learn and once learning is over."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from tanbr.lab.intervals import Spread
from tanbr.lab.jobs import Job
from tanbr.lab.paper.claim import OURS, Claim, Findings, Part, Results, Table, above
from tanbr.lab.paper.setup import Setup
from tanbr.lab.pictures import bar_chart, line_chart, smooth
from tanbr.lab.simulate import Study, earned, job_of
from tanbr.types import FloatArray

RIVALS = ("nucb", "regmean", "fisher", "average")
METHODS = (*OURS, *RIVALS)
TRAFFIC = {"fixed": "fixed", "dynamic": "dirichlet"}  # the paper's word → ours
GAIN = {"fixed": "up to 9% above the baselines", "dynamic": "5–10% above the baselines"}
PAPER_SLOTS = 5_000


def jobs(setup: Setup, mixes: Sequence[str] = tuple(TRAFFIC)) -> list[Job]:
    """Make one job for each mix, method and seed."""
    scale = setup.scale
    return [
        replace(job_of(_study(setup, mix), setup.bench, seed, name), name=f"online-{mix}-{name}-seed{seed}")
        for mix, name, seed in product(mixes, METHODS, scale.seeds)
    ]


def _study(setup: Setup, mix: str) -> Study:
    scale = setup.scale
    return Study(
        setup.bert_moe.path, data=setup.data, traffic=TRAFFIC[mix], slots=scale.slots + scale.after,
        requests=scale.requests, pool=scale.pool, answers="labels",
    )  # fmt: skip


def _rewards(setup: Setup, results: Results, mix: str) -> dict[str, FloatArray]:
    """Give each method's reward by seed and slot (seeds, T)."""
    return {
        name: np.array([earned(results[f"online-{mix}-{name}-seed{seed}"]["slots"]) for seed in setup.scale.seeds])
        for name in METHODS
    }


def fig4(setup: Setup, results: Results) -> Findings:
    """Compare Algorithm 1 and the default mode with NUCB while they learn, and with all rivals after."""
    slots, early = setup.scale.slots, max(1, setup.scale.slots // 10)
    rewards = {mix: _rewards(setup, results, mix) for mix in TRAFFIC}
    late = {mix: {name: of[:, slots:].mean(axis=1) for name, of in found.items()} for mix, found in rewards.items()}
    claims = []
    for ours, words in OURS.items():
        ahead = rewards["dynamic"][ours] - rewards["dynamic"]["nucb"]  # (seeds, T)
        start, end = Spread.of(-ahead[:, :early].mean(axis=1)), Spread.of(ahead[:, slots:].mean(axis=1))
        claims += [
            Claim(
                f"at first Tanbr earns less than NUCB ({words})", "less, no figure given",
                f"{-100 * start.mean:+.1f} points over the first {early} slots", above(start),
                f"few candidate blends at first, says the paper; {slots} slots of learning here",
            ),
            Claim(
                f"in the end Tanbr earns more than NUCB ({words})", "more, no figure given",
                f"{end.words(factor=100)} points over the last {setup.scale.after} slots", above(end),
                f"after {slots} slots of learning; the paper has {PAPER_SLOTS:,}",
            ),
        ]  # fmt: skip
    for mix, paper in GAIN.items():
        best = max(RIVALS, key=lambda name: late[mix][name].mean())
        for ours, words in OURS.items():
            own = late[mix][ours]
            difference = Spread.of(own - late[mix][best])
            claims.append(Claim(
                f"{mix} mix, after learning: Tanbr is above every other merge ({words})", paper,
                ", ".join(f"{own.mean() / late[mix][name].mean() - 1:+.1%} {name}" for name in RIVALS),
                above(difference), f"the best rival is {best}: {difference.words(factor=100)} points",
            ))  # fmt: skip
    header = ["method", "while learning", "after", "after, by seed"]
    tables = [
        Table(f"mean reward, {mix} mix", header, [
            [name, f"{of[:, :slots].mean():.3f}", f"{late[mix][name].mean():.3f}",
             ", ".join(f"{value:.3f}" for value in late[mix][name])]
            for name, of in found.items()
        ])
        for mix, found in rewards.items()
    ]  # fmt: skip
    window = max(1, (slots + setup.scale.after) // 12)
    curves = {
        label: smooth(rewards["dynamic"][name].mean(axis=0), window) for name, label in {**OURS, "nucb": "NUCB"}.items()
    }
    return Findings(claims, tables, {
        "Online reward while learning, moving mix": line_chart(
            {label: (range(len(curve)), curve) for label, curve in curves.items()},
            title=f"Reward, mean of the last {window} slots", xlabel="slot",
        ),
        "Average reward once learning is over": bar_chart(
            {f"{mix} mix": found for mix, found in late.items()}, title="Mean reward after learning; dots: seeds"
        ),
    })  # fmt: skip


def fig5(setup: Setup, results: Results) -> Findings:
    """Count the slots in which Tanbr is ahead of each rival, on the same requests."""
    slots, after = setup.scale.slots, setup.scale.after
    late = {name: of[:, slots:] for name, of in _rewards(setup, results, "dynamic").items()}
    claims = []
    for ours, words in OURS.items():
        ahead = {
            rival: float(((late[ours] > late[rival]) + 0.5 * (late[ours] == late[rival])).mean()) for rival in RIVALS
        }
        claims.append(Claim(
            f"slot by slot Tanbr is above the others under a moving mix ({words})", "5–10% above, slot by slot",
            ", ".join(f"{rival} in {share:.0%} of slots" for rival, share in ahead.items()),
            all(share > 0.5 for share in ahead.values()), f"the last {after} slots of every seed; a tie counts as half",
        ))  # fmt: skip
    series = {name: (np.arange(slots, slots + after), smooth(of[0], 3)) for name, of in late.items()}
    picture = line_chart(series, title="Reward, mean of three slots", xlabel="slot")
    return Findings(claims, pictures={"Reward slot by slot, first seed": picture})


FIG4 = Part(
    "fig4",
    "Fig. 4: learning online on a BERT-MoE",
    "Untagged requests; every method serves one merged model in each slot. “paper” is Algorithm 1 as printed, “tanbr” "
    "the router of this project. Routers go on learning in the last slots, which the paper evaluates.",
    jobs,
    fig4,
    needs=("model", "data"),
)
FIG5 = Part(
    "fig5",
    "Fig. 5: performance slot by slot under a moving mix",
    "The runs of Fig. 4 with a moving mix, in the slots after learning.",
    partial(jobs, mixes=("dynamic",)),
    fig5,
    needs=("model", "data"),
)
