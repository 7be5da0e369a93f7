"""The labelled rows of an experiment: generated, GLUE's, or from files of your own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from tanbr.errors import DataError
from tanbr.lab.tasks import glue, tiny
from tanbr.monitor import Monitor
from tanbr.monitor.config import MonitorConfig
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.own import OwnRows, is_own, read_own
from tanbr.tasks.rows import Row, Task

Rows = Mapping[str, Sequence[Row]]  # task name → rows
Progress = Callable[[str, int, int, str], None]  # phase, done, total, note

HELD_SEED, STREAM_SEED = 1_000, 2_000  # of generated rows; training uses seed 0
GENERATED = 600  # rows per task that are held, or for requests
TRAINED = 4_000  # … and that norms are tuned on
HELD = 0.2  # share of what is for training that is held back
HISTORY = 500  # texts per task that a monitor has read beforehand


@dataclass(frozen=True)
class Dataset:
    """Tasks whose rows are in three parts: to train on, held back, and for requests and figures alone."""

    place: str | Path | None = None

    @cached_property
    def _own(self) -> OwnRows | None:
        if self.place is None:
            return None
        path = Path(self.place)
        is_glue = any((path / task.name).is_dir() for task in glue.TASKS)
        return read_own(path) if not is_glue and is_own(path) else None

    @property
    def name(self) -> str:
        """What to call it."""
        return "generated" if self.place is None else "GLUE" if self._own is None else self._own.name

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks."""
        return tiny.TASKS if self.place is None else glue.TASKS if self._own is None else self._own.tasks

    def divided(self) -> tuple[dict[str, list[Row]], dict[str, list[Row]]]:
        """Divide what is for training as the paper does: of each task 80% to train on, 20% held back."""
        if self.place is None:
            return _generated(TRAINED, seed=0), _generated(GENERATED, seed=HELD_SEED)
        rows = glue.load(self.place) if self._own is None else self._own.rows
        cut = {name: len(of_task) - max(1, round(HELD * len(of_task))) for name, of_task in rows.items()}
        return (
            {name: list(of_task[: cut[name]]) for name, of_task in rows.items()},
            {name: list(of_task[cut[name] :]) for name, of_task in rows.items()},
        )

    def dev(self, *, limit: int | None = None) -> Rows:
        """Give the rows that training leaves alone, at most `limit` a task."""
        if self.place is None:
            return _generated(limit or GENERATED, seed=STREAM_SEED, split="test")
        if self._own is None:
            return glue.load(self.place, split="dev", limit=limit)
        return {name: rows[:limit] for name, rows in self._own.dev.items()}


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tasks and their rows."""

    name: str
    tasks: tuple[Task, ...]
    held: Rows  # for surveys, a monitor's history and the statistics of merges
    stream: Rows  # for requests

    @property
    def space(self) -> LabelSpace:
        """The columns that a model's head must have."""
        return LabelSpace(self.tasks)

    def first_held(self, count: int) -> dict[str, Sequence[Row]]:
        """Give the first `count` held rows of every task."""
        few = [task.name for task in self.tasks if len(self.held[task.name]) < count]
        if few:
            raise DataError(f"{few[0]} has only {len(self.held[few[0]])} held rows; ask for at most as many (--rows)")
        return {name: rows[:count] for name, rows in self.held.items()}

    def taught_monitor(self, config: MonitorConfig | None, *, seed: int, after: int = 0) -> Monitor:
        """Make a monitor that has read a few hundred past texts of every task, the first `after` of them left alone."""
        monitor = Monitor([task.name for task in self.tasks], config=config)
        rng = np.random.default_rng(seed)
        for name, held in self.held.items():
            rows = held[after:]
            chosen = rng.permutation(len(rows))[:HISTORY]
            monitor.learn([rows[i].text for i in chosen], [name] * len(chosen))
        return monitor


def taught_monitor(config: MonitorConfig | None = None, *, seed: int, per_task: int = 300) -> Monitor:
    """Make a monitor that has read a few hundred past texts of every generated task."""
    past = Corpus("past", tiny.TASKS, held=_generated(per_task, seed=HELD_SEED + seed), stream={})
    return past.taught_monitor(config, seed=seed)


def _generated(count: int, *, seed: int, split: tiny.Split = "train") -> dict[str, list[Row]]:
    return {task.name: tiny.generate(task.name, count, seed=seed, split=split) for task in tiny.TASKS}


@cache
def generated() -> Corpus:
    """Generate the embedded model's tasks: held rows of the train split (but of another seed), requests of the test."""
    return Corpus("generated", tiny.TASKS, held=_generated(GENERATED, seed=HELD_SEED), stream=Dataset().dev())


def of_data(place: Path | None, *, pool: int = 1_500, rehearse: bool = False) -> Corpus:
    """Read a data set; to `rehearse` leaves dev alone: the second half of the held rows are the requests."""
    if place is None:
        return generated()
    data = Dataset(place)
    _, held = data.divided()
    if rehearse:
        halves = {name: len(rows) // 2 for name, rows in held.items()}
        stream = {name: rows[halves[name] :][:pool] for name, rows in held.items()}
        held = {name: rows[: halves[name]] for name, rows in held.items()}
        return Corpus(f"{data.name} held", data.tasks, held=held, stream=stream)
    return Corpus(f"{data.name} dev", data.tasks, held=held, stream=data.dev(limit=pool))
