"""Streams of requests whose task mix drifts, drawn or recorded. Texts are for the server, rows for the scorer alone.

A recorded stream is JSON lines, one request each, slot after slot:

    {"slot": 0, "text": "the film is a joy", "task": "SST-2", "target": "1"}
    {"slot": 0, "text": ["a man sleeps", "somebody is awake"], "task": "MNLI", "target": "contradiction"}
    {"slot": 1, "text": ["a dog runs", "a dog is running"], "task": "STS-B", "target": 4.6}

`text` is what the server sees; `task` and `target` (a label, or the score of a graded task) are the scorer's alone.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tanbr.errors import DataError, InputError
from tanbr.files import write_atomically
from tanbr.tasks.rows import Row, Task
from tanbr.types import FloatArray, TaskMix, Text, as_task_mix

KINDS = ("fixed", "dirichlet", "switching", "sinusoidal")


@dataclass(frozen=True, eq=False)
class SlotRequests:
    """What one slot asks."""

    mix: TaskMix  # (V,) the mix they were drawn from; hidden from the server
    rows: tuple[Row, ...]  # the requests with their tags and targets; hidden from the server

    @cached_property
    def texts(self) -> list[Text]:
        """What the server sees."""
        return [row.text for row in self.rows]


def check(kind: str, *, slots: int, alpha: float, period: int = 1) -> None:
    """Refuse traffic that cannot be drawn."""
    if kind not in KINDS:
        raise InputError(f"unknown kind of traffic {kind!r}; choose one of {', '.join(KINDS)}")
    if slots < 1 or period < 1 or not alpha > 0:
        raise InputError(f"slots and period must be at least 1 and alpha above 0 (got {slots}, {period}, {alpha})")


def mixes(
    kind: str,
    *,
    tasks: int,
    slots: int,
    seed: int,
    alpha: float = 0.3,
    period: int = 40,
) -> FloatArray:
    """Draw a mix per slot (slots, V).

    `fixed`: one draw from Dirichlet(alpha). `dirichlet`: moves in straight lines between draws from
    Dirichlet(alpha), one per `period` slots. `switching`: jumps to a new draw every `period` slots.
    `sinusoidal`: each task's share swells and fades with its own phase, once per `period` slots.
    """
    check(kind, slots=slots, alpha=alpha, period=period)
    rng = np.random.default_rng(seed)
    time = np.arange(slots)
    if kind == "fixed":
        return np.tile(as_task_mix(rng.dirichlet(np.full(tasks, alpha)), tasks=tasks), (slots, 1))
    if kind == "sinusoidal":
        phase = rng.uniform(0, 2 * np.pi, tasks)
        waves = np.exp(3.0 * np.sin(2 * np.pi * time[:, None] / period + phase))
        return waves / waves.sum(axis=1, keepdims=True)
    draws = rng.dirichlet(np.full(tasks, alpha), slots // period + 2)
    if kind == "switching":
        return draws[time // period]
    share = (time % period / period)[:, None]
    return (1 - share) * draws[time // period] + share * draws[time // period + 1]


@dataclass(frozen=True, eq=False)
class Traffic:
    """Slots of requests drawn by mix from pools of rows; the same seed gives the same requests."""

    pools: Mapping[str, Sequence[Row]]  # task name → rows to draw from, in the order of the mix
    mixes: FloatArray  # (slots, V)
    requests: int  # per slot
    seed: int

    def __post_init__(self) -> None:
        if self.mixes.ndim != 2 or self.mixes.shape[1] != len(self.pools):
            raise InputError(f"mixes must be (slots, {len(self.pools)}) (got shape {self.mixes.shape})")
        empty = [name for name, rows in self.pools.items() if not rows]
        if empty:
            raise DataError(f"no rows to draw requests from for {', '.join(empty)}")

    def __len__(self) -> int:
        return len(self.mixes)

    def __iter__(self) -> Iterator[SlotRequests]:
        rng = np.random.default_rng(self.seed)
        pools = list(self.pools.values())
        for mix in self.mixes:
            tasks = rng.choice(len(pools), size=self.requests, p=mix)
            rows = tuple(pools[v][rng.integers(len(pools[v]))] for v in tasks)
            yield SlotRequests(mix=as_task_mix(mix, tasks=len(pools)), rows=rows)


@dataclass(frozen=True, eq=False)
class Trace:
    """Slots that were recorded; the mix of a slot is the share of each task in it."""

    tasks: tuple[Task, ...]
    slots: tuple[tuple[Row, ...], ...]

    @cached_property
    def mixes(self) -> FloatArray:
        """Give the mix of every slot (slots, V)."""
        names = [task.name for task in self.tasks]
        counts = [np.bincount([names.index(row.task) for row in rows], minlength=len(names)) for rows in self.slots]
        return np.array([count / count.sum() for count in counts])

    def __len__(self) -> int:
        return len(self.slots)

    def __iter__(self) -> Iterator[SlotRequests]:
        return (SlotRequests(mix=mix, rows=rows) for mix, rows in zip(self.mixes, self.slots, strict=True))


Stream: TypeAlias = Traffic | Trace  # slots of requests whose mixes are known to those who may know


def record_trace(path: Path, stream: Iterable[SlotRequests], *, tasks: tuple[Task, ...]) -> None:
    """Write a stream so that `read_trace` gives the same requests again."""
    known = {task.name: task for task in tasks}
    lines = []
    for number, slot in enumerate(stream):
        for row in slot.rows:
            task = known[row.task]
            target = row.target if task.graded else task.labels[int(row.target)]
            line = {"slot": number, "text": row.text, "task": row.task, "target": target}
            lines.append(json.dumps(line, ensure_ascii=False))
    write_atomically(path, "".join(f"{line}\n" for line in lines))


def read_trace(path: Path, *, tasks: tuple[Task, ...]) -> Trace:
    """Read a recorded stream; what is wrong in it is named with its line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise DataError(f"cannot read the trace {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    known = {task.name: task for task in tasks}
    slots: list[list[Row]] = []
    latest: int | None = None
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        slot, row = _request(line, known, where)
        if latest is not None and slot < latest:
            raise DataError(f"{where}: slots must not go back (got {slot} after {latest})")
        if slot != latest:
            slots.append([])
        slots[-1].append(row)
        latest = slot
    if not slots:
        raise DataError(f"{path} holds no requests")
    return Trace(tasks, tuple(map(tuple, slots)))


class _Line(BaseModel):
    """A request of a recorded stream, as JSON."""

    model_config = ConfigDict(strict=True)

    slot: int = Field(ge=0)
    text: str | tuple[str, str]
    task: str
    target: str | int | float


def _request(line: str, known: dict[str, Task], where: str) -> tuple[int, Row]:
    try:
        asked = _Line.model_validate_json(line)
    except ValidationError as error:
        problem = error.errors()[0]
        raise DataError(f"{where}: {'.'.join(map(str, problem['loc'])) or 'request'}: {problem['msg']}") from None
    task = known.get(asked.task)
    if task is None:
        raise DataError(f"{where}: unknown task {asked.task!r}; the model knows {', '.join(known)}")
    if isinstance(asked.text, tuple) != task.pair:
        wanted = "a list of two texts" if task.pair else "one text"
        raise DataError(f"{where}: text of {task.name} must be {wanted} (got {json.dumps(asked.text)[:60]})")
    return asked.slot, Row(task.name, asked.text, task.target(str(asked.target), where=where))
