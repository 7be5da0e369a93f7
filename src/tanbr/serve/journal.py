"""The learner's value on disk: every turn is one transaction that also names the router's and the monitor's states."""

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from tanbr.loop.choose import Pin
from tanbr.loop.guard import Guard
from tanbr.loop.holdback import WINDOW, Toss
from tanbr.loop.learner import Learner, Rules
from tanbr.loop.rewards import Trust
from tanbr.loop.slot import Reason, Slot, Turn, Version
from tanbr.loop.world import MixSource
from tanbr.router.shell import AskTell
from tanbr.serve.records import PracticeView, ServiceError
from tanbr.serve.store import Store, StoreReader, reading, shown
from tanbr.types import Decision, as_blend, as_task_mix

STATES = ("router", "monitor")
FOUND = TypeAdapter(PracticeView | None)


def write_turn(
    store: Store,
    turn: Turn,
    learner: Learner,
    *,
    regret: float = np.nan,
    practice: PracticeView | None = None,
) -> None:
    """Save the states under new names, then the turn and these names in one transaction; the old states go last.

    `regret` is of the slot that opens.
    """
    store.check_files()  # a folder that was deleted is not made anew in parts
    names = {name: f"{name}-{turn.opened.number}.state" for name in STATES}
    for name, file in names.items():
        save(getattr(learner, name), store.folder / file)
    trust = {"evidence": dict(learner.trust.evidence), "led": dict(learner.trust.led)}
    meta = {"mark": learner.mark, "rewarded": learner.rewarded, "guard": learner.guard.to_json()}
    if practice is not None:
        meta["practice"] = FOUND.dump_json(practice).decode()
    with store.transaction(**meta, trust=json.dumps(trust), **names) as write:
        if turn.ended is not None and turn.mix is not None:
            ended = (time.time(), shown(turn.mix.estimate), turn.mix.unknown, turn.ended.number)
            write.execute("UPDATE slots SET ended = ?, estimate = ?, unknown = ? WHERE slot = ?", ended)
        for told in turn.told:
            if not told.late:
                values = (shown(told.record.reward), shown(told.record.counts), told.slot.number)
                write.execute("UPDATE slots SET told = 1, reward = ?, counts = ? WHERE slot = ?", values)
        _write_opened(write, turn.opened, regret)
        _write_versions(write, learner.versions)
    _tidy(store)


def _tidy(store: Store) -> None:
    """Delete the states that are not named any more, or never were: a process was killed."""
    with suppress(OSError, ServiceError):  # the turn is written: what stays goes with the next
        named = {store.meta(name) for name in STATES}
        for file in (file for name in STATES for file in store.folder.glob(f"{name}-*.state")):
            if file.name not in named:
                file.unlink(missing_ok=True)


def save(thing: Any, path: Path) -> None:
    """Save the router or the monitor, for the folder's owner alone."""
    thing.save(path)
    path.chmod(0o600)


def _write_opened(write: Connection, slot: Slot, regret: float) -> None:
    decision = None if slot.decision is None else slot.decision.id
    write.execute(
        "INSERT INTO slots (slot, decision, mix, reason, note, started, regret, chance) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (slot.number, decision, shown(slot.task_mix), slot.reason, slot.note, time.time(), regret, slot.chance),
    )
    models = zip(slot.versions, slot.blends, slot.estimates, strict=True)
    write.executemany(
        "INSERT INTO models (slot, place, version, blend, estimates) VALUES (?, ?, ?, ?, ?)",
        [(slot.number, place, number, shown(x), shown(e)) for place, (number, x, e) in enumerate(models)],
    )


def _write_versions(write: Connection, versions: Iterable[Version]) -> None:
    """Keep these merge versions and no others."""
    rows = [
        (one.number, shown(one.blend), time.time(), one.good, shown(one.sums), shown(one.counts)) for one in versions
    ]
    kept = ", ".join(str(row[0]) for row in rows)
    write.execute(f"DELETE FROM versions WHERE version NOT IN ({kept})")  # noqa: S608 - numbers
    write.executemany(
        "INSERT INTO versions (version, blend, created, good, sums, counts) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET good = excluded.good, sums = excluded.sums, counts = excluded.counts",
        rows,
    )


def pin_text(pin: Pin | None) -> str | None:
    """Write an operator's wish as the store has it; it holds over restarts."""
    return None if pin is None else json.dumps({"blend": pin.blend.tolist(), "version": pin.version})


def read_pin(store: Store) -> Pin | None:
    """Read an operator's wish back."""
    with reading(store.folder):
        pinned = json.loads(store.meta("pinned") or "null")
        return None if pinned is None else Pin(np.array(pinned["blend"], dtype=float), int(pinned["version"]))


def read_learner(
    store: Store, rules: Rules, router: AskTell, monitor: MixSource, *, experts: int, tasks: int
) -> Learner:
    """Read the value back: slots that the router was not told of, the newest open; states of a killed process go."""
    waiting = getattr(router, "open", ())
    *settling, slot = (read_slot(row, experts=experts, tasks=tasks, decisions=waiting) for row in store.untold())
    with reading(store.folder):
        learner = Learner(
            rules, router, monitor, slot, Guard.from_json(store.meta("guard"), tasks=tasks), read_trust(store),
            slot.task_mix,
            settling=tuple(settling),
            versions=tuple(
                Version(row["version"], row["blend"], row["sums"], row["counts"], bool(row["good"]))
                for row in reversed(store.versions())
            ),
            rewarded=store.meta("rewarded"),
            mark=int(store.meta("mark") or 0),
            pin=read_pin(store),
            tosses=tuple(read_tosses(store.slots(limit=WINDOW + 1))),
        )  # fmt: skip
    _tidy(store)
    return learner


def read_trust(store: Store) -> Trust:
    """Read back what is known of the clients."""
    with reading(store.folder):
        return Trust(**json.loads(store.meta("trust") or "{}"))


def read_practice(store: StoreReader) -> PracticeView | None:
    """Read what practice had found; None if nothing was."""
    with reading(store.folder):
        return FOUND.validate_json(store.meta("practice") or "null")


def read_slot(row: dict[str, Any], *, experts: int, tasks: int, decisions: Iterable[Decision] = ()) -> Slot:
    """Make a slot of its row in the store; its decision is one of the `decisions` that the router still waits for."""
    with reading(f"the store's slot {row['slot']!r}"):
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
            row["chance"],
        )


def read_tosses(rows: Sequence[dict[str, Any]]) -> list[Toss]:
    """Read the slots (newest first) that could have been held back, and what they earned; oldest first."""
    told = (row for row in reversed(rows) if row["chance"] is not None and row["told"] and row["reward"] is not None)
    return [
        Toss(
            row["slot"], row["chance"], row["reason"] == Reason.HELD_BACK,
            row["mix"] if row["estimate"] is None else row["estimate"], row["reward"], row["counts"],
        )
        for row in told
    ]  # fmt: skip


def state_file(store: Store, name: str) -> Path:
    """Find the file of a saved state."""
    with reading(store.folder):
        return store.folder / store.meta(name)
