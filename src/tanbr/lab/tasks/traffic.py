"""Streams of requests whose task mix drifts. Texts are for the server, rows for the scorer alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tanbr.errors import DataError, InputError
from tanbr.tasks.rows import Row
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

    `fixed`: one draw. `dirichlet`: straight lines between draws, one per `period` slots. `switching`: a jump to each.
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


def with_newcomer(mixes: FloatArray, task: int, *, since: int, seed: int) -> FloatArray:
    """Let one task come from a slot on only, with 30 to 100% of the requests: a new share every ten slots."""
    rng, shares = np.random.default_rng(seed), np.zeros(len(mixes))
    shares[since:] = np.repeat(rng.uniform(0.3, 1.0, len(mixes) // 10 + 1), 10)[: max(len(mixes) - since, 0)]
    others = np.where(np.arange(mixes.shape[1]) == task, 0.0, mixes + 1e-9)
    others *= ((1.0 - shares) / others.sum(axis=1))[:, None]
    others[:, task] = shares
    return others


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
