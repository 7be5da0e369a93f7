"""The turn of a slot on disk: one transaction that also names the router's and the monitor's new states."""

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from sqlite3 import Connection
from typing import Any, TypeAlias

import numpy as np

from tanbr.errors import InputError, StateError
from tanbr.loop.rewards import Tally
from tanbr.loop.slot import Reason, Slot, Told, Turn
from tanbr.serve.rows import shown
from tanbr.serve.store import Store
from tanbr.types import Decision, as_blend, as_task_mix

STATES = ("router", "monitor")
Place: TypeAlias = tuple[int, int]  # a slot, and the place of one of its models
_COUNT = (
    "UPDATE versions SET requests = requests + :count "
    "WHERE version = (SELECT version FROM models WHERE slot = :slot AND place = :place)"
)


def write_turn(
    store: Store,
    turn: Turn,
    *,
    router: Any,
    monitor: Any,
    requests: Mapping[Place, int],
    measured: Mapping[int, Tally],
    keep_versions: int,
    regret: float,
    meta: Mapping[str, Any],
) -> None:
    """Save the states under new names, then the turn and these names in one transaction; the old states go last.

    `requests` are those that models held and were not yet counted, `measured` what the server rewarded the models of
    the ended slot with, `regret` what the router believes of the slot that opens.
    """
    store.check_files()  # a folder that was deleted is not made anew in parts
    old = {name: store.meta(name) for name in STATES}
    names = {name: f"{name}-{turn.opened.number}.state" for name in STATES}
    for name, thing in (("router", router), ("monitor", monitor)):
        thing.save(store.folder / names[name])
        (store.folder / names[name]).chmod(0o600)
    now = time.time()
    with store.transaction(**meta, **names) as write:
        count_requests(write, requests)
        if turn.ended is not None and turn.mix is not None:
            values = (now, shown(turn.mix.estimate), turn.mix.unknown, turn.ended.number)
            write.execute("UPDATE slots SET ended = ?, estimate = ?, unknown = ? WHERE slot = ?", values)
            for place, tally in measured.items():
                parts = [(source, shown(sums), shown(counts)) for source, (sums, counts) in tally.parts.items()]
                rows = [(turn.ended.number, place, *part) for part in parts]
                write.executemany("INSERT OR REPLACE INTO measured VALUES (?, ?, ?, ?, ?)", rows)
        for told in turn.told:
            _write_told(write, told)
        write.executemany("UPDATE versions SET good = 0 WHERE version = ?", [(version,) for version in turn.bad])
        _write_opened(write, turn.opened, now, keep_versions, regret)
    for name in STATES:
        if old[name] is not None and old[name] != names[name]:
            (store.folder / old[name]).unlink(missing_ok=True)


def count_requests(write: Connection, requests: Mapping[Place, int]) -> None:
    """Count more requests for models of slots, for the slots and for the versions."""
    for (slot, place), count in requests.items():
        named = {"slot": slot, "place": place, "count": count}
        write.execute("UPDATE slots SET requests = requests + :count WHERE slot = :slot", named)
        write.execute("UPDATE models SET requests = requests + :count WHERE slot = :slot AND place = :place", named)
        write.execute(_COUNT, named)


def read_slot(row: dict[str, Any], *, experts: int, tasks: int, decisions: Iterable[Decision] = ()) -> Slot:
    """Make a slot of its row in the store; its decision is one of the `decisions` that the router still waits for."""
    try:
        models = row["models"]
        if not models:
            raise ValueError("it has no model")
        return Slot(
            int(row["slot"]),
            tuple(int(model["version"]) for model in models),
            as_task_mix(row["mix"], tasks=tasks),
            np.array([as_blend(model["blend"], experts=experts) for model in models]),
            np.array([model["estimates"] for model in models]).reshape(len(models), tasks),
            next((one for one in decisions if one.id == row["decision"]), None),
            Reason(row["reason"]),
            str(row["note"]),
            None if row["estimate"] is None else as_task_mix(row["estimate"], tasks=tasks),
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


def _write_told(write: Connection, told: Told) -> None:
    slot, record = told.slot, told.record
    if not told.late:
        write.execute(
            "UPDATE slots SET told = 1, reward = ?, counts = ? WHERE slot = ?",
            (shown(record.reward), shown(record.counts), slot.number),
        )
    for place, (version, reward, count) in enumerate(zip(slot.versions, told.rewards, told.counts, strict=True)):
        if not told.late:
            write.execute(
                "UPDATE models SET reward = ?, counts = ? WHERE slot = ? AND place = ?",
                (shown(reward), shown(count), slot.number, place),
            )
        found = write.execute("SELECT sums, counts FROM versions WHERE version = ?", (version,)).fetchone()
        if found is not None:
            sums, counts = (np.array(json.loads(text)) for text in found)
            sums += np.where(count > 0, reward, 0.0) * count
            write.execute(
                "UPDATE versions SET sums = ?, counts = ? WHERE version = ?",
                (shown(sums), shown(counts + count), version),
            )


def _write_opened(write: Connection, opened: Slot, now: float, keep_versions: int, regret: float) -> None:
    decision = None if opened.decision is None else opened.decision.id
    mix, zeros = shown(opened.task_mix), shown(np.zeros_like(opened.task_mix))
    write.execute(
        "INSERT INTO slots (slot, decision, version, mix, blend, reason, note, started, regret) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            opened.number, decision, opened.versions[0], mix, shown(opened.blend), opened.reason, opened.note, now,
            regret,
        ),
    )  # fmt: skip
    rows = zip(opened.versions, opened.blends, opened.estimates, strict=True)
    for place, (version, blend, estimates) in enumerate(rows):
        write.execute(
            "INSERT INTO models (slot, place, version, blend, estimates) VALUES (?, ?, ?, ?, ?)",
            (opened.number, place, version, shown(blend), shown(estimates)),
        )
        write.execute(
            "INSERT OR IGNORE INTO versions (version, blend, created, sums, counts) VALUES (?, ?, ?, ?, ?)",
            (version, shown(blend), now, zeros, zeros),
        )
    write.execute(
        "DELETE FROM versions WHERE version NOT IN (SELECT version FROM versions ORDER BY "
        "version IN (SELECT version FROM models WHERE slot = ?) DESC, version DESC LIMIT ?)",
        (opened.number, max(keep_versions, len(opened.versions))),
    )
