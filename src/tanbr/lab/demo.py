"""The whole idea in two minutes: drifting untagged traffic on the embedded model, next to its rivals and a bound.

Both the router and the best fixed blend are there twice: with one merged model, and with a panel of two.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tanbr.files import check_writable, write_atomically
from tanbr.lab.answers import Answers
from tanbr.lab.compare import Comparison, KnownMix, compare
from tanbr.lab.corpus import taught_monitor
from tanbr.lab.panel import BestPanel, memory
from tanbr.lab.report import write_report
from tanbr.lab.rivals import BestKnown, FixedBlend, RandomBlend
from tanbr.lab.settings import Config
from tanbr.lab.tasks import tiny, traffic
from tanbr.lab.tasks.traffic import SlotRequests, Traffic
from tanbr.lab.world import Contestant, StreamWorld
from tanbr.loop.choose import StartBlend
from tanbr.loop.config import LoopConfig
from tanbr.loop.turn import Learner, MixSource
from tanbr.merge import Moe
from tanbr.router import Tanbr
from tanbr.serve.dense import DenseModel
from tanbr.serve.survey import Survey
from tanbr.tasks.card import read_card
from tanbr.tasks.metrics import LabelSpace
from tanbr.types import Router

TANBR, FIXED, BOUND = "tanbr", "best fixed", "best per slot"
MODELS = 2  # of the panels
KINDS = {"bert_moe": "BERT-MoE", "t5_moe": "T5-MoE that writes its answers"}
SURVEY = "survey.json"  # lies beside the embedded weights

# Streams of generated rows that never meet: training uses seed 0 of the train split, the monitor's history seed 1000.
TRAFFIC_SEED = 2_000
POOL = 600  # rows per task that requests are drawn from


def of_panel(method: str) -> str:
    """Name a method that holds a panel."""
    return f"{method}, {MODELS} models"


@dataclass(frozen=True, eq=False)
class Demo:
    """What the demo did."""

    result: Comparison
    learner: Learner  # of the one model
    report: Path
    figures: Path
    facts: dict[str, str]


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

    own = read_card(moe.path).experts_of(names)
    settings = config.router.of_requests(own)
    answers = Answers(DenseModel(moe, space))

    def contestant(router: Router, source: MixSource, models: int = 1, *, learns: bool = False) -> Contestant:
        loop = LoopConfig(explore="careful" if learns else "always")
        start = StartBlend(None, experts=K, own_experts=own if learns else ())
        world = StreamWorld(answers.each, space)
        return Contestant(world, router, source, experts=K, tasks=V, models=models, config=loop, start=start)

    def told() -> KnownMix:  # what follows no mix, or is a bound, is told it
        return KnownMix(mixes, taught_monitor(config.monitor, seed=seed))

    fixed = BestPanel(known.blends, known.rewards, mix=[1 / V] * V)
    contestants = {
        TANBR: contestant(
            Tanbr(K, V, seed=seed, config=settings), taught_monitor(config.monitor, seed=seed), learns=True
        ),
        of_panel(TANBR): contestant(
            Tanbr(K, V, seed=seed, config=settings), taught_monitor(config.monitor, seed=seed), MODELS, learns=True
        ),
        FIXED: contestant(FixedBlend(K, V, blend=known.best_fixed), KnownMix(mixes)),
        of_panel(FIXED): contestant(fixed, told(), MODELS),
        "average": contestant(FixedBlend(K, V), KnownMix(mixes)),
        BOUND: contestant(BestKnown(K, V, blends=known.blends, rewards=known.rewards), KnownMix(mixes)),
        "random": contestant(RandomBlend(K, V, seed=seed), KnownMix(mixes)),
    }
    result = compare(contestants, stream, best=BOUND, watch=watch)

    tail = min(100, slots)
    above, error = result.paired(TANBR, FIXED, tail=tail)
    second, second_error = result.paired(of_panel(TANBR), TANBR, tail=tail)
    one, several = (memory(moe, count) / 1e6 for count in (1, MODELS))
    named = KINDS[moe.family.model_type]
    facts = (
        ("model", f"{named}, {K} experts in each of {len(moe.sites)} FFN layers, {V} generated text tasks"),
        ("traffic", f"{slots} slots of {requests} requests, {kind} mixes (α = {alpha}), no tags"),
        (
            "tanbr above the best fixed blend",
            f"{100 * above:+.1f} ± {100 * error:.1f} points over the last {tail} slots",
        ),
        (
            f"{MODELS} models above one",
            f"{100 * second:+.1f} ± {100 * second_error:.1f} points, in {several:.1f} MB instead of {one:.1f}",
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
        facts=facts, tasks=names, tail=tail,
    )  # fmt: skip
    return Demo(result=result, learner=contestants[TANBR].learner, report=report, figures=figures, facts=dict(facts))
