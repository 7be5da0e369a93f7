"""Fig. 5: what each method earns slot by slot under a moving mix, once learning is over."""

from functools import partial

import numpy as np
from matplotlib.figure import Figure

from tanbr.lab.paper import claim, online
from tanbr.lab.paper.claim import Claim, Findings, Part, Results, Table
from tanbr.lab.paper.setup import Setup
from tanbr.lab.pictures import line_chart, smooth
from tanbr.types import FloatArray


def findings(setup: Setup, results: Results) -> Findings:
    """Count the slots in which Tanbr is ahead of each rival, on the same requests."""
    ahead = {ours: {rival: _ahead(setup, results, ours, rival) for rival in online.RIVALS} for ours in online.OURS}
    claims = [
        Claim(
            f"slot by slot Tanbr is above the others under a moving mix ({words})", "5–10% above, slot by slot",
            ", ".join(f"{rival} in {share:.0%} of slots" for rival, share in found.items()),
            claim.checks({f"ahead of {rival} in more than half of the slots": s > 0.5 for rival, s in found.items()}),
            f"the last {setup.scale.after} slots of every seed; a tie counts as half", setup.scale.seeds,
        )
        for words, found in zip(online.OURS.values(), ahead.values(), strict=True)
    ]  # fmt: skip
    spread = {name: online.rewards(setup, results, "dynamic", name)[:, setup.scale.slots :] for name in online.METHODS}
    rows = [
        [name, f"{v.mean():.3f}", f"{np.quantile(v, 0.1):.3f}", f"{np.quantile(v, 0.9):.3f}"]
        for name, v in spread.items()
    ]
    table = Table("reward of single slots, moving mix", ["method", "mean", "lowest tenth", "highest tenth"], rows)
    return Findings(claims, [table], {"Reward slot by slot, first seed": draw(setup, results)})


def _ahead(setup: Setup, results: Results, ours: str, rival: str) -> float:
    own, other = (_late(setup, results, name) for name in (ours, rival))
    return float(((own > other) + 0.5 * (own == other)).mean())


def _late(setup: Setup, results: Results, name: str) -> FloatArray:
    late: FloatArray = online.rewards(setup, results, "dynamic", name)[:, setup.scale.slots :]
    return late


def draw(setup: Setup, results: Results) -> Figure:
    """Draw the first seed's slots, lightly smoothed."""
    at = np.arange(setup.scale.slots, setup.scale.slots + setup.scale.after)
    series = {name: (at, smooth(_late(setup, results, name)[0], 3)) for name in online.METHODS}
    return line_chart(series, title="Reward, mean of three slots", xlabel="slot")


PART = Part(
    "fig5",
    "Fig. 5: performance slot by slot under a moving mix",
    "The runs of Fig. 4 with a moving mix, in the slots after learning.",
    partial(online.jobs, mixes=("dynamic",)),
    findings,
    needs=("model", "data"),
)
