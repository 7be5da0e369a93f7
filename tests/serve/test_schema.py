"""States that earlier versions wrote go on."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serve.serving import TEXTS, K, Ledger, V, answer, monitor, service
from tanbr.errors import StateError
from tanbr.lab.tasks import tiny
from tanbr.serve.ids import RequestIds
from tanbr.serve.records import Feedback, Reason
from tanbr.serve.schema import VERSION
from tanbr.serve.store import FILE, Store

# as version 2 made them; version 1 had no regret
OLD = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE requests (
    id BLOB PRIMARY KEY, version INTEGER NOT NULL, time REAL NOT NULL, posterior BLOB, logits BLOB, text TEXT
) WITHOUT ROWID;
CREATE TABLE feedback (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id BLOB UNIQUE NOT NULL, slot INTEGER NOT NULL,
    source TEXT NOT NULL, task INTEGER, reward REAL NOT NULL, time REAL NOT NULL
);
CREATE INDEX feedback_of_slot ON feedback (slot, seq);
CREATE TABLE measured (
    slot INTEGER NOT NULL, source TEXT NOT NULL, sums TEXT NOT NULL, counts TEXT NOT NULL, PRIMARY KEY (slot, source)
) WITHOUT ROWID;
CREATE TABLE slots (
    slot INTEGER PRIMARY KEY, decision INTEGER, version INTEGER NOT NULL, mix TEXT NOT NULL, blend TEXT NOT NULL,
    note TEXT NOT NULL, started REAL NOT NULL, ended REAL, requests INTEGER NOT NULL DEFAULT 0, estimate TEXT,
    unknown REAL NOT NULL DEFAULT 0, regret REAL, reward TEXT, counts TEXT, told INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE versions (
    version INTEGER PRIMARY KEY, blend TEXT NOT NULL, created REAL NOT NULL, good INTEGER NOT NULL DEFAULT 1,
    requests INTEGER NOT NULL DEFAULT 0, sums TEXT NOT NULL, counts TEXT NOT NULL
);
"""
KEY = bytes(range(32))
IDS = RequestIds(KEY)  # as earlier versions issued them: of no epoch


def old_state(folder: Path, taught: Path, version: int) -> list[bytes]:
    """A state with a told slot, one that waits, and an open one, as an earlier version left it; ids of each slot."""
    folder.mkdir()
    router = Ledger()
    mix = [1 / V] * V
    decisions = [router.ask(np.array(mix)) for _ in range(3)]
    router.tell(decisions[0], np.full(V, 0.5), np.full(V, 1.0))
    router.save(folder / "router-2.state")
    monitor(taught).save(folder / "monitor-2.state")
    ids = [IDS.issue(slot, 1)[0] for slot in range(3)]
    with sqlite3.connect(folder / FILE) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(OLD if version == 2 else OLD.replace(" regret REAL,", ""))
        made_for = json.dumps({"tasks": [task.name for task in tiny.TASKS], "experts": K})
        for name, value in {
            "version": version, "key": KEY, "router": "router-2.state", "monitor": "monitor-2.state", "mark": 1,
            "made_for": made_for,
        }.items():  # fmt: skip
            connection.execute("INSERT INTO meta VALUES (?, ?)", (name, value))
        for slot, decision in enumerate(decisions):
            done = slot < 2
            connection.execute(
                "INSERT INTO slots (slot, decision, version, mix, blend, note, started, ended, estimate, told, counts) "
                "VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?)",
                (slot, decision.id, slot + 1, json.dumps(mix), json.dumps(decision.blend.tolist()),
                 "skipped: at most 0.001 to gain" if slot == 0 else "", 1.0 if done else None,
                 json.dumps(mix) if done else None, slot == 0, json.dumps([1.0] * V) if slot == 0 else None),
            )  # fmt: skip
            zeros = json.dumps([0.0] * V)
            connection.execute(
                "INSERT INTO versions (version, blend, created, sums, counts) VALUES (?, ?, 0, ?, ?)",
                (slot + 1, json.dumps(decision.blend.tolist()), zeros, zeros),
            )
        for slot in (0, 1):
            connection.execute(
                "INSERT INTO feedback (id, slot, source, task, reward, time) VALUES (?, ?, 'feedback', 0, 0.5, 0)",
                (ids[slot], slot),
            )
    connection.close()
    return ids


@pytest.mark.parametrize("version", [1, 2])
def test_a_state_of_an_earlier_version_goes_on_and_loses_nothing(tmp_path: Path, taught: Path, version: int) -> None:
    service(tmp_path / "first", taught).stop()  # teaches the monitor
    ids = old_state(tmp_path / "state", taught, version)
    live = service(tmp_path / "state", taught, router=Ledger())
    assert live.store.meta("version") == VERSION
    assert (live.state().slot, live.state().merge_version) == (2, 3)
    assert live.store.meta("rewarded") == 1  # its router knows slot 0: it does not wait for a first reward
    assert [slot.reason for slot in live.slots()] == [Reason.CHOSEN, Reason.CHOSEN, Reason.KEPT]
    live.start()
    router: Any = live.learner.router
    before = router.told
    receipt = live.feedback([Feedback(IDS.show(i), reward=1.0, task="sentiment") for i in ids])
    assert receipt.outcomes == ("repeated", "repeated", "accepted")  # ids of before are still known
    given = answer(live, 4)
    live.submit(TEXTS[:1]).result(30)
    for _ in range(3):
        live.end_slot()
    assert live.learner.router.told == before + 1 + 1 + given  # what waited, the old id's, the new ones'
    live.stop()


def test_a_state_of_a_later_version_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.set_meta("version", VERSION + 1)
    store.close()
    with pytest.raises(StateError, match="use the tanbr that wrote it"):
        Store(tmp_path)
