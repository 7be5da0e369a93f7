"""The whole idea in two minutes: drifting untagged traffic on the embedded model, next to its rivals and a bound."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from tanbr.files import check_writable, write_atomically
from tanbr.lab.corpus import HELD_SEED, Corpus
from tanbr.lab.jobs import Moved
from tanbr.lab.methods import Bench, method
from tanbr.lab.report import write_page
from tanbr.lab.settings import Config
from tanbr.lab.simulate import Outcome, served
from tanbr.lab.standings import Standings
from tanbr.lab.tasks import tiny, traffic
from tanbr.lab.tasks.traffic import Traffic
from tanbr.merge import Moe
from tanbr.serve.check import bytes_of

METHODS = ("tanbr", "tanbr@2", "best-fixed", "best-fixed@2", "average", "best-per-slot", "random")
MODELS = {"bert_moe": "BERT-MoE", "t5_moe": "T5-MoE that writes its answers"}
SURVEY = "survey.json"  # lies beside the embedded weights

# Streams of generated rows that never meet: training uses seed 0 of the train split, the monitor's history seed 1000.
TRAFFIC_SEED = 2_000
POOL = 600  # rows per task that requests are drawn from
PAST = 300  # … that the monitor has read
ABOUT = (
    "Reward is in [0, 1]: the share of right answers, and for scores 1 − error over half the scale. Regret is what "
    "“best-per-slot”, which is told the true mix, earned more on the same requests. @2 holds two models."
)


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
    moved: Moved = lambda *_: None,
    finished: Callable[[Outcome], None] = lambda _: None,
    command: str = "tanbr demo",
) -> tuple[Standings, dict[str, str]]:
    """Run every method over the same requests and write `report.html` and `demo.json` to `out`; what it came to."""
    check_writable(out)
    names = [task.name for task in tiny.TASKS]
    mixes = traffic.mixes(kind, tasks=len(names), slots=slots, seed=seed, alpha=alpha)
    pools = {name: tiny.generate(name, POOL, seed=TRAFFIC_SEED + seed, split="test") for name in names}
    past = {name: tiny.generate(name, PAST, seed=HELD_SEED + seed) for name in names}
    rows = Corpus("demo", tiny.TASKS, held=past, stream=pools)
    bench = Bench(moe, rows, config, moe.path / SURVEY, answers="labels", practice=2 * requests, disjoint=True)
    stream = Traffic(pools=pools, mixes=mixes, requests=requests, seed=seed)
    outcomes = []
    for name in METHODS:
        one, begun = method(name), time.perf_counter()
        if not one.kind.learns:  # what follows no mix, or is a bound, is told it
            one = replace(one, knows=("oracle",))
        contestant = one.contestant(bench, mixes=mixes, seed=seed)
        records, answered = served(contestant, stream, tiny.TASKS, partial(moved, name))
        figures = np.array([answered.figures().get(task, np.nan) for task in names])
        outcomes.append(Outcome(seed, name, {}, records, figures, time.perf_counter() - begun))
        finished(outcomes[-1])
    standings = Standings(outcomes, names, {seed: mixes})
    K, sites, late = moe.num_experts, len(moe.sites), standings.late
    above, more = (standings.above(*pair, late).points for pair in (("tanbr", "best-fixed"), ("tanbr@2", "tanbr")))
    smaller, larger = (bytes_of(moe, models) / 1e6 for models in (1, 2))
    facts = {
        "model": f"{MODELS[moe.family.model_type]}, {K} experts in each of {sites} FFN layers, {len(names)} generated "
        "text tasks",
        "traffic": f"{slots} slots of {requests} requests, {kind} mixes (α = {alpha}), no tags",
        "rewards": "labels of half of the texts; what is shown was earned on the others, which teach nothing",
        "tanbr above the best fixed blend": f"{above} points from slot {late} on",
        "2 models above one": f"{more} points, in {larger:.1f} MB instead of {smaller:.1f}",
        "seed": str(seed),
    }
    write_atomically(out / "demo.json", json.dumps({"command": command, "facts": facts, **standings.to_json()}) + "\n")
    title = "tanbr: one dense model that follows its traffic"
    write_page(out / "report.html", standings, title=title, command=command, facts=facts, about=ABOUT)
    return standings, facts
