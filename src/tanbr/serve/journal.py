"""The turn of a slot on disk: one transaction that also names the router's and the monitor's new states."""

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tanbr.errors import InputError, StateError
from tanbr.serve.records import Reason
from tanbr.serve.rewards import Tally
from tanbr.serve.rows import shown
from tanbr.serve.store import Store
from tanbr.types import (
    Blend,
    Decision,
    FloatArray,
    SlotMix,
    SlotRecord,
    TaskMix,
    as_blend,
    as_task_mix,
)

STATES = ("router", "monitor")
Place: TypeAlias = tuple[int, int]  # a slot, and the place of one of its models
_COUNT = (
    "UPDATE versions SET requests = requests + :count "
    "WHERE version = (SELECT version FROM models WHERE slot = :slot AND place = :place)"
)


class Saves(Protocol):
    """What has a state."""

    def save(self, path: str | Path) -> None:
        """Write it atomically."""
        ...


@dataclass(frozen=True, eq=False)
class OpenSlot:
    """A slot that is being served, or whose reward is still to come."""

    slot: int
    versions: tuple[int, ...]  # (G,) of its models
    task_mix: TaskMix  # (V,) forecast that it was opened with
    blends: FloatArray  # (G, K) as served
    decision: Decision | None  # the router's, if it is its choice
    reason: Reason
    note: str = ""
    estimates: FloatArray | None = None  # (G, V) what each task is taken to earn at each model; None if there is one

    @property
    def merge_version(self) -> int:
        """Version of the first model."""
        return self.versions[0]

    @property
    def blend(self) -> Blend:
        """Blend (K,) of the first model."""
        return np.asarray(self.blends[0])

    @property
    def panel(self) -> Decision:
        """Its models, and which request goes to which."""
        estimates = np.ones((1, len(self.task_mix))) if self.estimates is None else self.estimates
        return Decision(-1, self.task_mix, self.blends, estimates)

    @property
    def task_models(self) -> NDArray[np.intp]:
        """The place of the model that each task goes to (V,)."""
        return self.panel.task_models


@dataclass(frozen=True, eq=False)
class SlotReward:
    """What the router is told of a slot."""

    opened: OpenSlot
    rewards: FloatArray  # (G, V) of each model, NaN where unseen
    counts: FloatArray  # (G, V)
    late: bool  # whether it is what came after the slot was told
    shares: dict[str, float]  # source → its share

    @property
    def record(self) -> SlotRecord:
        """The slot, start to end, over all its models."""
        slot, counts = self.opened, self.counts.sum(axis=0)
        sums = np.where(self.counts > 0, self.rewards * self.counts, 0.0).sum(axis=0)
        reward = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
        if len(slot.versions) == 1:
            reward = self.rewards[0]
        return SlotRecord(slot.slot, slot.merge_version, slot.task_mix, slot.blend, reward, counts)


@dataclass(eq=False)
class Turn:
    """From one slot to the next."""

    ended: OpenSlot | None  # None before the first
    mark: int  # feedback up to this number is in the router's state, as far as its slot was told
    mix: SlotMix | None = None  # of the ended slot
    requests: dict[Place, int] = field(default_factory=dict)  # requests that models held and were not yet counted
    regret: float = math.nan  # of the ended slot, as the router believed when it opened
    told: list[SlotReward] = field(default_factory=list)
    rewarded: int | None = None  # slot that was opened when the router was last told a reward
    bad: tuple[int, ...] = ()  # merge versions that proved bad
    meta: dict[str, Any] = field(default_factory=dict)  # what else is to be kept
    first: int = 0  # slot to start with

    @property
    def next(self) -> int:
        """The slot that is to be opened."""
        return self.first if self.ended is None else self.ended.slot + 1


def write_turn(
    store: Store,
    turn: Turn,
    opened: OpenSlot,
    *,
    states: dict[str, Saves],
    measured: Sequence[Tally],
    keep_versions: int,
) -> None:
    """Save the states under new names, then the turn and these names in one transaction; the old states go last.

    A state that is not in `states` stays the one that was saved before; `measured` are what the server rewarded the
    models of the ended slot with.
    """
    store.check_files()  # a folder that was deleted is not made anew in parts
    old = {name: store.meta(name) for name in STATES}
    names = {name: f"{name}-{opened.slot}.state" if name in states else old[name] for name in STATES}
    for name, thing in states.items():
        thing.save(store.folder / names[name])
        (store.folder / names[name]).chmod(0o600)
    now = time.time()
    with store.transaction(mark=turn.mark, **names, **turn.meta) as write:
        count_requests(write, turn.requests)
        if turn.ended is not None and turn.mix is not None:
            _write_ended(write, turn, turn.ended, turn.mix, measured, now)
        for told in turn.told:
            _write_told(write, told)
        write.executemany("UPDATE versions SET good = 0 WHERE version = ?", [(version,) for version in turn.bad])
        _write_opened(write, opened, now, keep_versions)
    for name in STATES:
        if old[name] is not None and old[name] != names[name]:
            (store.folder / old[name]).unlink(missing_ok=True)


def count_requests(write: Connection, requests: dict[Place, int]) -> None:
    """Count more requests for models of slots, for the slots and for the versions."""
    for (slot, place), count in requests.items():
        named = {"slot": slot, "place": place, "count": count}
        write.execute("UPDATE slots SET requests = requests + :count WHERE slot = :slot", named)
        write.execute("UPDATE models SET requests = requests + :count WHERE slot = :slot AND place = :place", named)
        write.execute(_COUNT, named)


def read_slot(row: dict[str, Any], *, experts: int, tasks: int, decisions: Iterable[Decision] = ()) -> OpenSlot:
    """Make a slot of its row in the store; its decision is one of the `decisions` that the router still waits for."""
    try:
        models = row["models"]
        if not models:
            raise ValueError("it has no model")
        estimates = None
        if len(models) > 1:
            estimates = np.array([model["estimates"] for model in models]).reshape(len(models), tasks)
        return OpenSlot(
            int(row["slot"]),
            tuple(int(model["version"]) for model in models),
            as_task_mix(row["mix"], tasks=tasks),
            np.array([as_blend(model["blend"], experts=experts) for model in models]),
            next((one for one in decisions if one.id == row["decision"]), None),
            Reason(row["reason"]),
            str(row["note"]),
            estimates,
        )
    except (InputError, ValueError, TypeError) as error:
        raise StateError(f"the store's slot {row['slot']!r} is damaged ({error}); restore it from a copy") from None


def state_file(store: Store, name: str) -> Path:
    """Find the file of a saved state."""
    file = store.meta(name)
    if not isinstance(file, str) or Path(file).name != file:
        raise StateError(f"{store.folder} names no {name} to go on with (got {file!r}); restore it from a copy")
    return store.folder / file


def tidy(store: Store) -> None:
    """Remove states that a process left behind when it was killed."""
    named = {store.meta(name) for name in STATES}
    for name in STATES:
        for file in store.folder.glob(f"{name}-*.state"):
            if file.name not in named:
                file.unlink(missing_ok=True)


def _write_ended(
    write: Connection, turn: Turn, ended: OpenSlot, mix: SlotMix, measured: Sequence[Tally], now: float
) -> None:
    write.execute(
        "UPDATE slots SET ended = ?, estimate = ?, unknown = ?, regret = ? WHERE slot = ?",
        (now, shown(mix.estimate), mix.unknown, turn.regret, ended.slot),
    )
    for place, tally in enumerate(measured):
        rows = [(ended.slot, place, source, shown(sums), shown(counts)) for source, sums, counts in tally.parts]
        write.executemany("INSERT OR REPLACE INTO measured VALUES (?, ?, ?, ?, ?)", rows)


def _write_told(write: Connection, told: SlotReward) -> None:
    slot, record = told.opened, told.record
    if not told.late:
        write.execute(
            "UPDATE slots SET told = 1, reward = ?, counts = ? WHERE slot = ?",
            (shown(record.reward), shown(record.counts), slot.slot),
        )
    for place, (version, reward, count) in enumerate(zip(slot.versions, told.rewards, told.counts, strict=True)):
        if not told.late:
            write.execute(
                "UPDATE models SET reward = ?, counts = ? WHERE slot = ? AND place = ?",
                (shown(reward), shown(count), slot.slot, place),
            )
        found = write.execute("SELECT sums, counts FROM versions WHERE version = ?", (version,)).fetchone()
        if found is not None:
            sums, counts = (np.array(json.loads(text)) for text in found)
            sums += np.where(count > 0, reward, 0.0) * count
            write.execute(
                "UPDATE versions SET sums = ?, counts = ? WHERE version = ?",
                (shown(sums), shown(counts + count), version),
            )


def _write_opened(write: Connection, opened: OpenSlot, now: float, keep_versions: int) -> None:
    decision = None if opened.decision is None else opened.decision.id
    mix, zeros = shown(opened.task_mix), shown(np.zeros_like(opened.task_mix))
    write.execute(
        "INSERT INTO slots (slot, decision, version, mix, blend, reason, note, started) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (opened.slot, decision, opened.merge_version, mix, shown(opened.blend), opened.reason, opened.note, now),
    )
    for place, (version, blend) in enumerate(zip(opened.versions, opened.blends, strict=True)):
        estimates = None if opened.estimates is None else shown(opened.estimates[place])
        write.execute(
            "INSERT INTO models (slot, place, version, blend, estimates) VALUES (?, ?, ?, ?, ?)",
            (opened.slot, place, version, shown(blend), estimates),
        )
        write.execute(
            "INSERT OR IGNORE INTO versions (version, blend, created, sums, counts) VALUES (?, ?, ?, ?, ?)",
            (version, shown(blend), now, zeros, zeros),
        )
    write.execute(
        "DELETE FROM versions WHERE version NOT IN (SELECT version FROM versions ORDER BY "
        "version IN (SELECT version FROM models WHERE slot = ?) DESC, version DESC LIMIT ?)",
        (opened.slot, max(keep_versions, len(opened.versions))),
    )
