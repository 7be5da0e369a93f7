"""Any set of methods over the same stream, several seeds: one resumable job a seed and method."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from tanbr.errors import TanbrError
from tanbr.lab import jobs
from tanbr.lab import settings as configuration
from tanbr.lab.corpus import Corpus, of_data
from tanbr.lab.jobs import Job, Kept, Moved, Tick
from tanbr.lab.methods import AVERAGE, Bench, Conditions, method
from tanbr.lab.tasks import traffic
from tanbr.lab.tasks.traffic import Traffic
from tanbr.lab.train.checkpoints import digest
from tanbr.lab.world import Contestant
from tanbr.merge import open as open_moe
from tanbr.merge.sources.expert_list import is_list, read_list
from tanbr.moe.device import device_of
from tanbr.tasks.metrics import figure
from tanbr.tasks.rows import Row, Task
from tanbr.types import FloatArray, SlotRecord

Records: TypeAlias = list[SlotRecord]
RECENT = 20  # slots whose mean reward is shown


@dataclass(frozen=True)
class Study(Conditions):
    """Everything that decides the results, but for seeds and methods."""

    checkpoint: Path  # or a list of experts
    experts: tuple[str, ...] = ()  # folders of experts, of which `checkpoint` is the base
    blend_only: Literal["all", "ffn"] | None = None
    data: Path | None = None  # a data set; the generated tasks if None
    traffic: str = "dirichlet"
    alpha: float = 0.3
    period: int = 40
    newcomer: str | None = None  # a task that comes from slot `period` on only, with 30 to 100% of the requests
    slots: int = 200
    requests: int = 64
    pool: int = 1_500  # most rows per task that requests are drawn from
    rehearse: bool = False
    survey: Path | None = None
    config: Path | None = None
    device: str = "cpu"  # where models answer; results do not depend on it

    def __post_init__(self) -> None:
        device_of(self.device)  # before anything is written

    @property
    def merging(self) -> str:
        """How blends are merged if a method does not say: as the list of experts says, or averaged."""
        return (read_list(self.checkpoint).method if is_list(self.checkpoint) else None) or AVERAGE

    def corpus(self) -> Corpus:
        """Read or generate the rows."""
        return of_data(self.data, pool=self.pool, rehearse=self.rehearse)

    def stream(self, corpus: Corpus, seed: int) -> Traffic:
        """Give the requests of a seed: the same for every method."""
        mixes = traffic.mixes(
            self.traffic, tasks=len(corpus.tasks), slots=self.slots, seed=seed, alpha=self.alpha, period=self.period
        )
        if self.newcomer is not None:
            place = [task.name for task in corpus.tasks].index(corpus.space.task(self.newcomer).name)
            mixes = traffic.with_newcomer(mixes, place, since=self.period, seed=seed)
        return Traffic(pools=corpus.stream, mixes=mixes, requests=self.requests, seed=seed)

    def bench(self) -> Bench:
        """Open the checkpoint, rows and survey; refuse what does not fit together."""
        # methods say how they merge; what a list of experts says of that may need what is to be measured first
        moe = open_moe(
            self.checkpoint, experts=self.experts, blend_only=self.blend_only, method=AVERAGE, device=self.device
        )
        shared = {one.name: getattr(self, one.name) for one in fields(Conditions)}
        bench = Bench(moe, self.corpus(), configuration.load(self.config), surveys=self.survey, **shared)
        bench.survey  # noqa: B018  (one that does not fit is refused here)
        return bench

    def facts(self, bench: Bench, name: str) -> dict[str, Any]:
        """Describe what a result depends on: no path, so that it reads the same elsewhere."""
        one = method(name)
        own = bench.merging(one.merging)
        return {
            "model_sha256": bench.moe.fingerprint,
            "data": bench.corpus.name,
            "pool": sum(map(len, bench.corpus.stream.values())),
            **{field: getattr(self, field) for field in ("traffic", "alpha", "period", "slots", "requests", "answers")},
            **{
                field: getattr(self, field)
                for field in ("newcomer", "rewards", "card", "practice", "disjoint", "precision")
                if getattr(self, field) != getattr(Study, field)
            },
            **({"router": one.kind.source} if one.kind.source else {}),
            "survey": own.known.digest if one.surveyed else None,
            **own.moe.method.facts,
            "dense_sha256": digest(one.dense) if one.dense else None,
            "config": bench.config.model_dump(mode="json", exclude_defaults=True, include={"router", "monitor"}),
        }


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one method did with one seed."""

    seed: int
    method: str
    facts: Mapping[str, Any]
    records: list[SlotRecord]
    figures: FloatArray  # (V,) the tasks' own metrics over all answers; NaN where a task never came
    seconds: float  # of the whole job


class Answered:
    """The targets and answers of each task, and the tasks' own metrics over them."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self.told: dict[str, tuple[list[float], list[float]]] = {task.name: ([], []) for task in tasks}

    def __call__(self, rows: Sequence[Row], answers: FloatArray) -> None:
        """Take in what was answered to rows (n,)."""
        for row, answer in zip(rows, answers, strict=True):
            self.told[row.task][0].append(row.target)
            self.told[row.task][1].append(float(answer))

    def figures(self, *, least: int = 1) -> dict[str, float]:
        """Score each task that has at least so many answers."""
        enough = [task for task in self._tasks if len(self.told[task.name][0]) >= least]
        return {task.name: figure(task, *map(np.array, self.told[task.name])) for task in enough}


def served(contestant: Contestant, stream: Traffic, tasks: Sequence[Task], tick: Tick) -> tuple[Records, Answered]:
    """Let one method serve a stream: its slots, and what it answered."""
    answered = Answered(tasks)
    records: Records = []
    for slot in stream:
        records.append(contestant.play(slot.rows, answered))
        recent = np.nanmean([record.total_reward for record in records[-RECENT:]])
        tick(len(records), len(stream), f"reward {recent:.3f}")
    return records, answered


def play(study: Study, bench: Bench, seed: int, name: str, tick: Tick) -> tuple[Records, FloatArray]:
    """Run one method over the stream of one seed: its slots, and the tasks' own metrics (V,)."""
    stream, tasks = study.stream(bench.corpus, seed), bench.corpus.tasks
    contestant = method(name).contestant(bench, mixes=stream.mixes, seed=seed)
    try:
        records, answered = served(contestant, stream, tasks, tick)
    except TanbrError as error:
        raise type(error)(f"method {name}, seed {seed}, slot {contestant.learner.slot.number}: {error}") from None
    found = answered.figures()
    return records, np.array([found.get(task.name, np.nan) for task in tasks])


COLUMNS = ("merge_version", "task_mix", "blend", "reward", "counts")  # of a slot, as they are kept


def job_of(study: Study, bench: Bench, seed: int, name: str) -> Job:
    """Describe one method and seed as a job."""

    def run(tick: Tick) -> dict[str, Any]:
        records, figures = play(study, bench, seed, name, tick)
        slots = {column: [np.round(getattr(record, column), 4) for record in records] for column in COLUMNS}
        return {"figures": np.round(figures, 4), "slots": slots}

    return Job(f"seed{seed}-{name.replace(':', '.').replace('/', '.')}", run, study.facts(bench, name))


def earned(slots: Mapping[str, Any]) -> FloatArray:
    """Give the mean reward of each kept slot's requests (T,)."""
    reward, counts = (np.array(slots[name], dtype=np.float64) for name in ("reward", "counts"))
    return np.asarray(np.nansum(reward * counts, axis=1) / counts.sum(axis=1))


def _outcome(seed: int, name: str, job: Job, kept: Kept) -> Outcome:
    versions, *arrays = (np.array(kept.result["slots"][column], dtype=np.float64) for column in COLUMNS)
    records = [SlotRecord(t, int(version), *(of[t] for of in arrays)) for t, version in enumerate(versions)]
    figures = np.array(kept.result["figures"], dtype=np.float64)
    return Outcome(seed, name, job.facts, records, figures, kept.seconds)


def simulate(
    study: Study,
    names: Sequence[str],
    seeds: Sequence[int],
    *,
    out: Path,
    moved: Moved = lambda *_: None,
    finished: Callable[[Outcome, bool], None] = lambda *_: None,
) -> list[Outcome]:
    """Run every method with every seed and keep each result in `out`/runs; those that are there are not run again."""
    bench = study.bench()
    made = [(seed, name, job_of(study, bench, seed, name)) for seed in seeds for name in names]
    todo = {one[2].name: one for one in made}
    outcomes: dict[str, Outcome] = {}

    def take(job: str, kept: Kept, was_there: bool) -> None:
        outcomes[job] = _outcome(*todo[job], kept)
        finished(outcomes[job], was_there)

    jobs.run(out / "runs", [job for *_, job in todo.values()], moved=moved, finished=take)
    return [outcomes[job] for job in todo]
