"""The turn of a slot on disk: one transaction that also names the router's and the monitor's new states."""

import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Protocol

import numpy as np

from tanbr.serve.loop import OpenSlot
from tanbr.serve.rewards import Tally
from tanbr.serve.store import Store, shown
from tanbr.types import Counts, Decision, Reward, SlotMix, SlotRecord

STATES = ("router", "monitor")


class Saves(Protocol):
    """What has a state."""

    def save(self, path: str | Path) -> None:
        """Write it atomically."""
        ...


@dataclass(frozen=True, eq=False)
class Told:
    """A slot whose reward the router was told."""

    opened: OpenSlot
    reward: Reward
    counts: Counts
    late: bool  # whether it is what came after the slot was told

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
    mix: SlotMix | None = None
    requests: int = 0  # that the ended slot held
    regret: float = math.nan  # of the ended slot, as the router believed when it opened
    told: list[Told] = field(default_factory=list)
    bad: int | None = None  # a merge version that proved bad


def write_turn(
    store: Store, turn: Turn, opened: OpenSlot, *, states: dict[str, Saves], measured: Tally | None, keep_versions: int
) -> None:
    """Save the states under new names, then the turn and these names in one transaction; the old states go last.

    A state that is not in `states` stays the one that was saved before.
    """
    old = {name: store.meta(name) for name in STATES}
    names = {name: f"{name}-{opened.slot}.state" if name in states else old[name] for name in STATES}
    for name, thing in states.items():
        thing.save(store.folder / names[name])
    now = time.time()
    with store.transaction(mark=turn.mark, **names) as write:
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


def read_slot(row: dict[str, Any], *, told: bool = False) -> OpenSlot:
    """Make a slot of its row in the store; one that was told has no decision any more."""
    asked = row["decision"] is not None and not told
    decision = Decision(row["decision"], row["mix"], row["blend"]) if asked else None
    return OpenSlot(row["slot"], row["version"], row["mix"], row["blend"], decision, row["note"])


def _write_ended(
    write: Connection, turn: Turn, ended: OpenSlot, mix: SlotMix, measured: Tally | None, now: float
) -> None:
    write.execute(
        "UPDATE slots SET ended = ?, requests = ?, estimate = ?, unknown = ?, regret = ? WHERE slot = ?",
        (now, turn.requests, shown(mix.estimate), mix.unknown, turn.regret, ended.slot),
    )
    write.execute("UPDATE versions SET requests = requests + ? WHERE version = ?", (turn.requests, ended.merge_version))
    for source, sums, counts in [] if measured is None else measured.parts:
        write.execute(
            "INSERT OR REPLACE INTO measured VALUES (?, ?, ?, ?)", (ended.slot, source, shown(sums), shown(counts))
        )


def _write_told(write: Connection, told: Told) -> None:
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
        "INSERT INTO slots (slot, decision, version, mix, blend, note, started) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (opened.slot, decision, opened.merge_version, mix, blend, opened.note, now),
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
