"""The turn of a slot on disk: one transaction that also names the router's and the monitor's new states."""

import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Protocol

import numpy as np

from tanbr.errors import InputError, StateError
from tanbr.serve.records import Reason
from tanbr.serve.rewards import Tally
from tanbr.serve.rows import shown
from tanbr.serve.store import Store
from tanbr.types import Blend, Counts, Decision, Reward, SlotMix, SlotRecord, TaskMix, as_blend, as_task_mix

STATES = ("router", "monitor")
_COUNT = "UPDATE versions SET requests = requests + ? WHERE version = (SELECT version FROM slots WHERE slot = ?)"


class Saves(Protocol):
    """What has a state."""

    def save(self, path: str | Path) -> None:
        """Write it atomically."""
        ...


@dataclass(frozen=True, eq=False)
class OpenSlot:
    """A slot that is being served, or whose reward is still to come."""

    slot: int
    merge_version: int
    task_mix: TaskMix  # (V,) forecast that it was opened with
    blend: Blend  # (K,) as served
    decision: Decision | None  # the router's, if the blend is its choice
    reason: Reason
    note: str = ""


@dataclass(frozen=True, eq=False)
class SlotReward:
    """What the router is told of a slot."""

    opened: OpenSlot
    reward: Reward
    counts: Counts
    late: bool  # whether it is what came after the slot was told
    shares: dict[str, float]  # source → its share

    @property
    def record(self) -> SlotRecord:
        """The slot, start to end."""
        slot = self.opened
        return SlotRecord(slot.slot, slot.merge_version, slot.task_mix, slot.blend, self.reward, self.counts)


@dataclass(eq=False)
class Turn:
    """From one slot to the next."""

    ended: OpenSlot | None  # None before the first
    mark: int  # feedback up to this number is in the router's state, as far as its slot was told
    mix: SlotMix | None = None  # of the ended slot
    requests: dict[int, int] = field(default_factory=dict)  # slot → requests that it held and were not yet counted
    regret: float = math.nan  # of the ended slot, as the router believed when it opened
    told: list[SlotReward] = field(default_factory=list)
    rewarded: int | None = None  # slot that was opened when the router was last told a reward
    bad: int | None = None  # a merge version that proved bad
    meta: dict[str, Any] = field(default_factory=dict)  # what else is to be kept
    first: int = 0  # slot to start with

    @property
    def next(self) -> int:
        """The slot that is to be opened."""
        return self.first if self.ended is None else self.ended.slot + 1


def write_turn(
    store: Store, turn: Turn, opened: OpenSlot, *, states: dict[str, Saves], measured: Tally | None, keep_versions: int
) -> None:
    """Save the states under new names, then the turn and these names in one transaction; the old states go last.

    A state that is not in `states` stays the one that was saved before.
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
        if turn.bad is not None:
            write.execute("UPDATE versions SET good = 0 WHERE version = ?", (turn.bad,))
        _write_opened(write, opened, now, keep_versions)
    for name in STATES:
        if old[name] is not None and old[name] != names[name]:
            (store.folder / old[name]).unlink(missing_ok=True)


def count_requests(write: Connection, requests: dict[int, int]) -> None:
    """Count more requests for slots, and for their versions."""
    for slot, count in requests.items():
        write.execute("UPDATE slots SET requests = requests + ? WHERE slot = ?", (count, slot))
        write.execute(_COUNT, (count, slot))


def read_slot(row: dict[str, Any], *, experts: int, tasks: int, told: bool = False) -> OpenSlot:
    """Make a slot of its row in the store; one that was told has no decision any more."""
    try:
        mix, blend = as_task_mix(row["mix"], tasks=tasks), as_blend(row["blend"], experts=experts)
        asked = row["decision"] is not None and not told
        decision = Decision(int(row["decision"]), mix, blend) if asked else None
        return OpenSlot(
            int(row["slot"]), int(row["version"]), mix, blend, decision, Reason(row["reason"]), str(row["note"])
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
    write: Connection, turn: Turn, ended: OpenSlot, mix: SlotMix, measured: Tally | None, now: float
) -> None:
    write.execute(
        "UPDATE slots SET ended = ?, estimate = ?, unknown = ?, regret = ? WHERE slot = ?",
        (now, shown(mix.estimate), mix.unknown, turn.regret, ended.slot),
    )
    for source, sums, counts in [] if measured is None else measured.parts:
        write.execute(
            "INSERT OR REPLACE INTO measured VALUES (?, ?, ?, ?)", (ended.slot, source, shown(sums), shown(counts))
        )


def _write_told(write: Connection, told: SlotReward) -> None:
    slot = told.opened
    if not told.late:
        write.execute(
            "UPDATE slots SET told = 1, reward = ?, counts = ? WHERE slot = ?",
            (shown(told.reward), shown(told.counts), slot.slot),
        )
    found = write.execute("SELECT sums, counts FROM versions WHERE version = ?", (slot.merge_version,)).fetchone()
    if found is not None:
        sums, counts = (np.array(json.loads(text)) for text in found)
        sums += np.where(told.counts > 0, told.reward, 0.0) * told.counts
        write.execute(
            "UPDATE versions SET sums = ?, counts = ? WHERE version = ?",
            (shown(sums), shown(counts + told.counts), slot.merge_version),
        )


def _write_opened(write: Connection, opened: OpenSlot, now: float, keep_versions: int) -> None:
    decision = None if opened.decision is None else opened.decision.id
    mix, blend, zeros = shown(opened.task_mix), shown(opened.blend), shown(np.zeros_like(opened.task_mix))
    write.execute(
        "INSERT INTO slots (slot, decision, version, mix, blend, reason, note, started) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (opened.slot, decision, opened.merge_version, mix, blend, opened.reason, opened.note, now),
    )
    write.execute(
        "INSERT OR IGNORE INTO versions (version, blend, created, sums, counts) VALUES (?, ?, ?, ?, ?)",
        (opened.merge_version, blend, now, zeros, zeros),
    )
    write.execute(
        "DELETE FROM versions WHERE version NOT IN "
        "(SELECT version FROM versions ORDER BY version = ? DESC, version DESC LIMIT ?)",
        (opened.merge_version, keep_versions),
    )
