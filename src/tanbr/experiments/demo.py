"""The whole idea in two minutes: drifting untagged traffic on the embedded model, next to three rivals and a bound."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tanbr.baselines import BestKnown, FixedBlend, RandomBlend
from tanbr.baselines.survey import Survey
from tanbr.experiments.answers import Answers, Blended, model_for
from tanbr.experiments.compare import Comparison, KnownMix, compare
from tanbr.experiments.contestant import Contestant, MixSource, OneModel
from tanbr.experiments.report import write_report
from tanbr.files import check_writable, write_atomically
from tanbr.merge import Moe
from tanbr.router import Tanbr
from tanbr.serve.build import taught_monitor
from tanbr.settings import Config
from tanbr.tasks import tiny, traffic
from tanbr.tasks.card import read_card
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.traffic import SlotRequests, Traffic
from tanbr.types import Router

TANBR, BOUND = "tanbr", "best per slot"
SURVEY = "survey.json"  # lies beside the embedded weights

# Streams of generated rows that never meet: training uses seed 0 of the train split, the monitor's history seed 1000.
TRAFFIC_SEED = 2_000
POOL = 600  # rows a task that requests are drawn from


@dataclass(frozen=True, eq=False)
class Demo:
    """What the demo did."""

    result: Comparison
    router: Tanbr
    report: Path
    figures: Path


def run(
    moe: Moe,
    *,
    out: Path,
    config: Config,
    slots: int = 300,
    requests: int = 64,
    kind: str = "dirichlet",
    alpha: float = 0.1,
    seed: int = 0,
    watch: Callable[[Comparison, SlotRequests], None] | None = None,
    command: str = "tanbr demo",
) -> Demo:
    """Run every method over the same requests and write `report.html` and `demo.json` to `out`."""
    space = LabelSpace(tiny.TASKS)
    names = [task.name for task in tiny.TASKS]
    K, V = moe.num_experts, len(names)
    known = Survey.load(moe.path / SURVEY)
    mixes = traffic.mixes(kind, tasks=V, slots=slots, seed=seed, alpha=alpha)
    pools = {name: tiny.generate(name, POOL, seed=TRAFFIC_SEED + seed, split="test") for name in names}
    stream = Traffic(pools=pools, mixes=mixes, requests=requests, seed=seed)
    check_writable(out)

    monitor = taught_monitor(config.monitor, seed=seed)
    router = Tanbr(K, V, seed=seed, config=config.router.of_requests(read_card(moe.path).experts_of(names)))
    methods: dict[str, tuple[Router, MixSource]] = {  # all but the first either ignore the mix or are told it
        TANBR: (router, monitor),
        "best fixed": (FixedBlend(K, V, blend=known.best_fixed), KnownMix(mixes)),
        "average": (FixedBlend(K, V), KnownMix(mixes)),
        "random": (RandomBlend(K, V, seed=seed), KnownMix(mixes)),
        BOUND: (BestKnown(K, V, blends=known.blends, rewards=known.rewards), KnownMix(mixes)),
    }
    answers = Answers(model_for(moe, space))
    contestants: dict[str, Contestant] = {
        name: OneModel(Blended(answers), chooser, source, V) for name, (chooser, source) in methods.items()
    }
    result = compare(contestants, stream, space=space, best=BOUND, watch=watch)

    tail = min(100, slots)
    above, error = result.paired(TANBR, "best fixed", tail=tail)
    facts = (
        ("model", f"BERT-MoE, {K} experts in each of {len(moe.sites)} FFN layers, {V} generated text tasks"),
        ("traffic", f"{slots} slots of {requests} requests, {kind} mixes (α = {alpha}), no tags"),
        (
            "tanbr above the best fixed blend",
            f"{100 * above:+.1f} ± {100 * error:.1f} points over the last {tail} slots",
        ),
        ("seed", str(seed)),
    )
    figures = write_atomically(
        out / "demo.json",
        json.dumps(
            {
                "command": command,
                "facts": dict(facts),
                "tail": tail,
                "methods": result.summary(tail=tail),
                **result.to_json(),
            }
        )
        + "\n",
    )
    report = write_report(
        out / "report.html", result, title="tanbr: one dense model that follows its traffic", command=command,
        facts=facts, tasks=names, tree=router.tree, tail=tail,
    )  # fmt: skip
    return Demo(result=result, router=router, report=report, figures=figures)
