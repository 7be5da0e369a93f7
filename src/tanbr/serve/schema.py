"""The tables of the store, and how those of earlier versions become these."""

import sqlite3

from tanbr.errors import StateError
from tanbr.serve.ids import KEY_BYTES

VERSION = 4
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE requests (
    id BLOB PRIMARY KEY,       -- starts with the slot, so that a slot's requests lie together
    version INTEGER NOT NULL, time REAL NOT NULL,
    posterior BLOB,            -- (V,) float32
    logits BLOB,               -- (columns,) float32, if labels are to be scored
    text TEXT,                 -- JSON, if texts are to be kept
    novel INTEGER NOT NULL DEFAULT 0  -- whether it is unlike any known task
) WITHOUT ROWID;
CREATE TABLE feedback (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id BLOB UNIQUE NOT NULL, slot INTEGER NOT NULL,
    source TEXT NOT NULL, task INTEGER, reward REAL NOT NULL, time REAL NOT NULL,
    client TEXT NOT NULL DEFAULT ''  -- opaque key of who gave it
);
CREATE INDEX feedback_of_slot ON feedback (slot, seq);
CREATE TABLE measured (        -- rewards the server gave itself: sums and counts per task, JSON
    slot INTEGER NOT NULL, place INTEGER NOT NULL, source TEXT NOT NULL, sums TEXT NOT NULL, counts TEXT NOT NULL,
    PRIMARY KEY (slot, place, source)
) WITHOUT ROWID;
CREATE TABLE models (          -- of each slot; the first one's version and blend are its slot's, too
    slot INTEGER NOT NULL, place INTEGER NOT NULL, version INTEGER NOT NULL, blend TEXT NOT NULL,
    estimates TEXT,            -- (V,) what each task is taken to earn at it: who gets which request
    requests INTEGER NOT NULL DEFAULT 0, reward TEXT, counts TEXT, PRIMARY KEY (slot, place)
) WITHOUT ROWID;
CREATE TABLE slots (
    slot INTEGER PRIMARY KEY, decision INTEGER, version INTEGER NOT NULL, mix TEXT NOT NULL, blend TEXT NOT NULL,
    note TEXT NOT NULL, started REAL NOT NULL, ended REAL, requests INTEGER NOT NULL DEFAULT 0, estimate TEXT,
    unknown REAL NOT NULL DEFAULT 0, regret REAL, reward TEXT, counts TEXT,
    told INTEGER NOT NULL DEFAULT 0,  -- whether the router knows its feedback up to meta's `mark`
    reason TEXT NOT NULL DEFAULT 'chosen'  -- a `records.Reason`
);
CREATE TABLE versions (
    version INTEGER PRIMARY KEY, blend TEXT NOT NULL, created REAL NOT NULL, good INTEGER NOT NULL DEFAULT 1,
    requests INTEGER NOT NULL DEFAULT 0, sums TEXT NOT NULL, counts TEXT NOT NULL  -- of rewards told, per task
);
"""
_STEPS = {  # version → what turns its tables into those of the next
    1: ("ALTER TABLE slots ADD COLUMN regret REAL",),
    2: (
        "ALTER TABLE requests ADD COLUMN novel INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE feedback ADD COLUMN client TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE slots ADD COLUMN reason TEXT NOT NULL DEFAULT 'chosen'",
        "UPDATE slots SET reason = CASE WHEN note = 'pinned' THEN 'pinned' WHEN note LIKE 'rolled back%' THEN "
        "'rolled back' WHEN note LIKE 'failed%' THEN 'failed' WHEN note LIKE 'exploration%' THEN 'best' "
        "WHEN note LIKE 'skipped%' OR note LIKE 'refused%' THEN 'kept' ELSE 'chosen' END",
        "INSERT OR REPLACE INTO meta SELECT 'rewarded', MAX(slot) + 1 FROM slots "
        "WHERE told AND EXISTS (SELECT 1 FROM json_each(counts) WHERE value > 0)",
    ),
    3: (
        "CREATE TABLE models (slot INTEGER NOT NULL, place INTEGER NOT NULL, version INTEGER NOT NULL, "
        "blend TEXT NOT NULL, estimates TEXT, requests INTEGER NOT NULL DEFAULT 0, reward TEXT, counts TEXT, "
        "PRIMARY KEY (slot, place)) WITHOUT ROWID",
        "INSERT INTO models SELECT slot, 0, version, blend, NULL, requests, reward, counts FROM slots",
        "ALTER TABLE measured RENAME TO measured_of_slot",
        "CREATE TABLE measured (slot INTEGER NOT NULL, place INTEGER NOT NULL, source TEXT NOT NULL, "
        "sums TEXT NOT NULL, counts TEXT NOT NULL, PRIMARY KEY (slot, place, source)) WITHOUT ROWID",
        "INSERT INTO measured SELECT slot, 0, source, sums, counts FROM measured_of_slot",
        "DROP TABLE measured_of_slot",
    ),
}


def bring_up_to_date(connection: sqlite3.Connection, path: object) -> None:
    """Make the tables in an empty file, or turn those of an earlier version into today's, all or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            for statement in _TABLES.split(";\n"):
                connection.execute(statement)
            connection.execute("INSERT INTO meta VALUES ('version', ?)", (VERSION,))
            connection.execute("INSERT INTO meta SELECT 'key', randomblob(?)", (KEY_BYTES,))
            return
        found = connection.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()
        version = found[0] if found else None
        if version not in (*_STEPS, VERSION):
            raise StateError(f"{path} is of version {version}, this tanbr uses {VERSION}; use the tanbr that wrote it")
        for step in range(version, VERSION):
            for statement in _STEPS[step]:
                connection.execute(statement)
        if version != VERSION:
            connection.execute("UPDATE meta SET value = ? WHERE key = 'version'", (VERSION,))
