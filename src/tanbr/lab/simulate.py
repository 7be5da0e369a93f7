"""Any set of methods over the same stream, several seeds: one job a seed and method, each kept in a file of its own.

Jobs share nothing but the folder, so they run in several processes, and a run that was killed goes on with the jobs
that are missing. Every job drives the slot loop of the server; only the scorer sees tags.
"""

import json
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from tanbr.errors import StateError, TanbrError
from tanbr.files import check_writable, write_atomically
from tanbr.lab import settings as configuration
from tanbr.lab.compare import Comparison, compare
from tanbr.lab.corpus import Corpus, generated, of_data
from tanbr.lab.methods import AVERAGE, Bench, methods
from tanbr.lab.tasks import traffic
from tanbr.lab.tasks.traffic import Stream, Traffic
from tanbr.lab.train.checkpoints import digest
from tanbr.lab.train.run import Interruption
from tanbr.lab.world import Credit
from tanbr.merge import open as open_moe
from tanbr.merge.sources.expert_list import is_list, read_list
from tanbr.moe.device import device_of
from tanbr.tasks.metrics import figure
from tanbr.tasks.rows import Row, Task
from tanbr.types import AnswersBy, FloatArray, SlotRecord, to_jsonable

Watch = Callable[[int, str, int, float], None]  # seed, method, slots done, mean reward of the last few
Job = tuple[int, str]  # seed and method
Result = tuple[Job, TanbrError | None]
RECENT = 20


@dataclass(frozen=True)
class Study:
    """Everything that decides the results, but for seeds and methods."""

    checkpoint: Path  # or a list of experts
    experts: tuple[str, ...] = ()  # folders of experts, of which `checkpoint` is the base
    blend_only: Literal["all", "ffn"] | None = None
    data: Path | None = None  # a data set; the generated tasks if None
    traffic: str = "dirichlet"  # or trace:FILE
    alpha: float = 0.3
    period: int = 40
    slots: int = 200
    requests: int = 64
    pool: int = 1_500  # most rows per task that requests are drawn from
    rehearse: bool = False
    survey: Path | None = None
    config: Path | None = None
    answers: AnswersBy = "labels"
    rewards: Credit = "labels"  # what clients send back
    device: str = "cpu"  # where models answer; results do not depend on it

    def __post_init__(self) -> None:
        device_of(self.device)  # before anything is written

    @property
    def merging(self) -> str:
        """How blends are merged if a method does not say: as the list of experts says, or averaged."""
        return (read_list(self.checkpoint).method if is_list(self.checkpoint) else None) or AVERAGE

    def corpus(self) -> Corpus:
        """Read or generate the rows."""
        return generated() if self.data is None else of_data(self.data, pool=self.pool, rehearse=self.rehearse)

    def stream(self, corpus: Corpus, seed: int) -> Stream:
        """Give the requests of a seed: the same for every method."""
        if self.traffic.startswith("trace:"):
            return traffic.read_trace(Path(self.traffic.removeprefix("trace:")), tasks=corpus.tasks)
        mixes = traffic.mixes(
            self.traffic, tasks=len(corpus.tasks), slots=self.slots, seed=seed, alpha=self.alpha, period=self.period
        )
        return Traffic(pools=corpus.stream, mixes=mixes, requests=self.requests, seed=seed)

    def bench(self) -> Bench:
        """Open the checkpoint, rows and survey; refuse what does not fit together."""
        # methods say how they merge; what a list of experts says of that may need what is to be measured first
        moe = open_moe(
            self.checkpoint, experts=self.experts, blend_only=self.blend_only, method=AVERAGE, device=self.device
        )
        corpus = self.corpus()
        settings = configuration.load(self.config)
        bench = Bench(moe, corpus, settings, surveys=self.survey, answers_by=self.answers, credit=self.rewards)
        if self.survey is not None:
            bench.survey  # noqa: B018  (one that does not fit is refused here)
        return bench

    def facts(self, bench: Bench, name: str) -> dict[str, Any]:
        """Describe what a result depends on: no path, so that it reads the same elsewhere."""
        synthetic = not self.traffic.startswith("trace:")
        drawn = {"alpha": self.alpha, "period": self.period, "slots": self.slots, "requests": self.requests}
        kind = self.traffic if synthetic else f"trace:{Path(self.traffic).name}"
        [one] = methods([name])
        return {
            "model_sha256": bench.moe.fingerprint,
            "data": bench.corpus.name,
            "pool": sum(map(len, bench.corpus.stream.values())),
            "traffic": kind,
            **({"answers": self.answers} if self.answers != "labels" else {}),
            **({"rewards": self.rewards} if self.rewards != "labels" else {}),
            **(drawn if synthetic else {}),
            "survey": one.bench(bench).known.digest if one.surveyed else None,
            **one.bench(bench).moe.method.facts,
            **({"dense_sha256": digest(one.dense)} if one.dense else {}),
            "config": bench.config.model_dump(mode="json", exclude_defaults=True, include={"router", "monitor"}),
        }


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one method did with one seed."""

    seed: int
    method: str
    facts: dict[str, Any]
    records: list[SlotRecord]
    figures: FloatArray  # (V,) the tasks' own metrics over all answers; NaN where a task never came
    seconds: float  # of the whole job

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        names = ("merge_version", "task_mix", "blend", "reward", "counts")
        columns = {name: [np.round(getattr(r, name), 4) for r in self.records] for name in names}
        columns["counts"] = [r.counts.astype(int) for r in self.records]
        about = {"seed": self.seed, "method": self.method, "facts": self.facts, "seconds": round(self.seconds, 1)}
        values = {**about, "figures": np.round(self.figures, 4), "slots": columns}
        write_atomically(path, json.dumps(to_jsonable(values), separators=(",", ":")) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Outcome":
        """Read what `save` wrote."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            slots = values["slots"]
            arrays = {n: np.array(slots[n], dtype=np.float64) for n in ("task_mix", "blend", "reward", "counts")}
            records = [
                SlotRecord(t, int(version), *(arrays[name][t] for name in arrays))
                for t, version in enumerate(slots["merge_version"])
            ]
            figures = np.array(values["figures"], dtype=np.float64)
            return cls(values["seed"], values["method"], values["facts"], records, figures, values["seconds"])
        except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise StateError(f"{path} is no result of simulate ({error}); delete it to run it again") from None


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


def play(study: Study, bench: Bench, seed: int, name: str, watch: Watch | None = None) -> Outcome:
    """Run one method over the stream of one seed."""
    started = time.monotonic()
    stream, space = study.stream(bench.corpus, seed), bench.corpus.space
    [one] = methods([name])
    contestant = one.contestant(bench, mixes=stream.mixes, seed=seed)
    answered = Answered(space.tasks)

    def report(so_far: Comparison, _: Any) -> None:
        if watch:
            done = so_far.records[name]
            watch(seed, name, len(done), float(np.nanmean([r.total_reward for r in done[-RECENT:]])))

    try:
        result = compare({name: contestant}, stream, best=name, watch=report, collect=answered)
    except TanbrError as error:
        raise type(error)(f"method {name}, seed {seed}, slot {contestant.learner.slot.number}: {error}") from None
    found = answered.figures()
    figures = np.array([found.get(task.name, np.nan) for task in space.tasks])
    facts = study.facts(bench, name)
    return Outcome(seed, name, facts, result.records[name], figures, time.monotonic() - started)


def place(out: Path, seed: int, name: str) -> Path:
    """Name the file of a job's outcome."""
    return out / "runs" / f"seed{seed}-{name.replace(':', '.').replace('/', '.')}.json"


def simulate(
    study: Study,
    names: Sequence[str],
    seeds: Sequence[int],
    *,
    out: Path,
    workers: int = 1,
    watch: Watch | None = None,
    finished: Callable[[Outcome, bool], None] | None = None,
) -> list[Outcome]:
    """Run every method with every seed and keep each outcome in `out`; those that are there already are not run again.

    `watch` hears of every slot in one process, `finished` of each outcome and whether it was there. A job that fails
    stops no other; the first error is raised when all that can be done is done.
    """
    bench = study.bench()
    outcomes: dict[tuple[int, str], Outcome] = {}
    missing = []
    for seed in seeds:
        for name in names:
            path = place(out, seed, name)
            if not path.exists():
                missing.append((seed, name))
                continue
            outcomes[seed, name] = Outcome.load(path)
            if outcomes[seed, name].facts != study.facts(bench, name):
                raise StateError(f"{path} belongs to a run with other settings; choose another --out or delete it")
            if finished:
                finished(outcomes[seed, name], True)
    check_writable(out / "runs")
    if workers > 1 and len(missing) > 1:
        results = _in_processes(study, out, workers, missing)
    else:
        torch.set_num_threads(1)
        results = (_attempt(study, bench, out, job, watch) for job in missing)
    errors = []
    for (seed, name), error in results:
        if error is not None:
            errors.append(error)
            continue
        outcomes[seed, name] = Outcome.load(place(out, seed, name))
        if finished:
            finished(outcomes[seed, name], False)
    if errors:
        raise errors[0]
    return [outcomes[seed, name] for seed in seeds for name in names]


def _attempt(study: Study, bench: Bench, out: Path, job: Job, watch: Watch | None = None) -> Result:
    try:
        play(study, bench, *job, watch).save(place(out, *job))
    except TanbrError as error:
        return job, error
    return job, None


_worker: dict[str, Any] = {}  # what a process keeps between jobs: the model and its answers


def _start(study: Study, out: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the first one ends the others
    torch.set_num_threads(1)
    _worker.update(study=study, bench=study.bench(), out=out)


def _work(jobs: Sequence[Job]) -> list[Result]:
    return [_attempt(_worker["study"], _worker["bench"], _worker["out"], job) for job in jobs]


def _in_processes(study: Study, out: Path, workers: int, jobs: Sequence[Job]) -> Iterator[Result]:
    """Run jobs in several processes; the seeds of a method that does not learn share one, and its answers."""
    bundles: dict[tuple[Any, ...], list[Job]] = {}
    for seed, name in jobs:
        bundles.setdefault((name, seed) if methods([name])[0].kind.learns else (name,), []).append((seed, name))
    spawning = multiprocessing.get_context("spawn")  # a forked torch may hang
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, mp_context=spawning, initializer=_start, initargs=(study, out)) as pool:
        try:
            with _uninterrupted():  # the processes start here, and Ctrl-C must not find them half awake
                waiting = [pool.submit(_work, bundle) for bundle in sorted(bundles.values(), key=len, reverse=True)]
            for future in as_completed(waiting):
                yield from future.result()
        except BaseException:
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()  # outcomes are written whole or not at all
            pool.shutdown(cancel_futures=True)  # waits for the pool's own thread, which would else end amid the exit
            raise


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put Ctrl-C off until the block ends; processes that start in it never hear of it."""
    with Interruption() as interruption:  # the mask is this thread's: another may still receive the signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if interruption.asked:
        raise KeyboardInterrupt
