"""The whole idea in two minutes: drifting untagged traffic on the embedded model, next to its rivals and a bound."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tanbr.files import check_writable, write_atomically
from tanbr.lab.compare import Comparison, compare
from tanbr.lab.corpus import HELD_SEED, Corpus
from tanbr.lab.methods import Bench, method
from tanbr.lab.report import write_report
from tanbr.lab.settings import Config
from tanbr.lab.tasks import tiny, traffic
from tanbr.lab.tasks.traffic import SlotRequests, Traffic
from tanbr.merge import Moe
from tanbr.serve.check import bytes_of

TANBR, FIXED, BOUND = "tanbr", "best fixed", "best per slot"
TWO = "{}, 2 models"
METHODS = {  # as a comparison calls them
    TANBR: "tanbr",
    TWO.format(TANBR): "tanbr@2",
    FIXED: "best-fixed",
    TWO.format(FIXED): "best-fixed@2",
    "average": "average",
    BOUND: "best-per-slot",
    "random": "random",
}
MODELS = {"bert_moe": "BERT-MoE", "t5_moe": "T5-MoE that writes its answers"}
SURVEY = "survey.json"  # lies beside the embedded weights

# Streams of generated rows that never meet: training uses seed 0 of the train split, the monitor's history seed 1000.
TRAFFIC_SEED = 2_000
POOL = 600  # rows per task that requests are drawn from
PAST = 300  # … that the monitor has read


@dataclass(frozen=True, eq=False)
class Demo:
    """What the demo did."""

    result: Comparison
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
    check_writable(out)
    names = [task.name for task in tiny.TASKS]
    mixes = traffic.mixes(kind, tasks=len(names), slots=slots, seed=seed, alpha=alpha)
    pools = {name: tiny.generate(name, POOL, seed=TRAFFIC_SEED + seed, split="test") for name in names}
    past = {name: tiny.generate(name, PAST, seed=HELD_SEED + seed) for name in names}
    rows = Corpus("demo", tiny.TASKS, held=past, stream=pools)
    bench = Bench(moe, rows, config, moe.path / SURVEY, practice=2 * requests, disjoint=True)
    contestants = {}
    for shown, name in METHODS.items():
        asked = method(name)
        if not asked.kind.learns:  # what follows no mix, or is a bound, is told it
            asked = replace(asked, knows=("oracle",))
        contestants[shown] = asked.contestant(bench, mixes=mixes, seed=seed)
    stream = Traffic(pools=pools, mixes=mixes, requests=requests, seed=seed)
    result = compare(contestants, stream, best=BOUND, watch=watch)

    tail = min(100, slots)
    above, more = (result.paired(*pair, tail=tail) for pair in ((TANBR, FIXED), (TWO.format(TANBR), TANBR)))
    K, sites = moe.num_experts, len(moe.sites)
    named, tasks = MODELS[moe.family.model_type], f"{len(names)} generated text tasks"
    one, two = (bytes_of(moe, models) / 1e6 for models in (1, 2))
    facts = {
        "model": f"{named}, {K} experts in each of {sites} FFN layers, {tasks}",
        "traffic": f"{slots} slots of {requests} requests, {kind} mixes (α = {alpha}), no tags",
        "rewards": "labels of half of the texts; what is shown was earned on the others, which teach nothing",
        "tanbr above the best fixed blend": f"{_points(above)} over the last {tail} slots",
        "2 models above one": f"{_points(more)}, in {two:.1f} MB instead of {one:.1f}",
        "seed": str(seed),
    }
    values = {"command": command, "facts": facts, "tail": tail, "methods": result.summary(tail=tail)}
    figures = write_atomically(out / "demo.json", json.dumps({**values, **result.to_json()}) + "\n")
    title = "tanbr: one dense model that follows its traffic"
    report = write_report(
        out / "report.html", result, title=title, command=command, facts=facts, tasks=names, tail=tail
    )
    return Demo(result, report, figures, facts)


def _points(found: tuple[float, float]) -> str:
    mean, error = found
    return f"{100 * mean:+.1f} ± {100 * error:.1f} points"
