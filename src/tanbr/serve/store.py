"""What the service remembers: one SQLite file in a private folder that one server uses at a time.

A turn's transaction names the new state files of router and monitor (`journal.py`), so no feedback counts twice.
"""

import fcntl
import json
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tanbr.errors import InputError, StateError
from tanbr.loop.rewards import Given
from tanbr.serve.ids import EPOCH_BYTES, KEY_BYTES, MOST_EPOCHS, Epoch, place_of, slot_of
from tanbr.serve.records import Outcome, ServiceError
from tanbr.types import FloatArray, frozen

FILE = "store.sqlite3"
LOCK = "lock"
VERSION = 9  # of the tables; tanbr 0.1 had 1 to 4
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE requests (
    id BLOB PRIMARY KEY,       -- starts with the slot, so that a slot's requests lie together
    posterior FLOATS BLOB,     -- (V,)
    logits FLOATS BLOB,        -- (columns,), if labels are to be scored
    novel INTEGER NOT NULL     -- whether it is unlike any known task
) WITHOUT ROWID;
CREATE TABLE feedback (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id BLOB NOT NULL, slot INTEGER NOT NULL,
    source TEXT NOT NULL, task INTEGER, reward REAL NOT NULL, time REAL NOT NULL,
    client TEXT NOT NULL DEFAULT '',  -- opaque key of who gave it
    label REAL                 -- number of the true label, or the true score, if it was given
);
CREATE INDEX feedback_of_slot ON feedback (slot, seq);
CREATE UNIQUE INDEX first_feedback ON feedback (id);
CREATE TABLE slots (
    slot INTEGER PRIMARY KEY, decision INTEGER, mix VECTOR TEXT NOT NULL, note TEXT NOT NULL, started REAL NOT NULL,
    ended REAL, estimate VECTOR TEXT, unknown REAL NOT NULL DEFAULT 0, regret REAL,
    reward VECTOR TEXT, counts VECTOR TEXT,
    told INTEGER NOT NULL DEFAULT 0,  -- whether the router knows its feedback up to meta's `mark`
    reason TEXT NOT NULL DEFAULT 'chosen',  -- a `loop.Reason`
    chance REAL                -- that it would be held back; none if no coin was tossed
);
CREATE TABLE models (          -- of each slot
    slot INTEGER NOT NULL, place INTEGER NOT NULL, version INTEGER NOT NULL, blend VECTOR TEXT NOT NULL,
    estimates VECTOR TEXT,     -- (V,) what each task is taken to earn at it: who gets which request
    requests INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (slot, place)
) WITHOUT ROWID;
CREATE TABLE versions (
    version INTEGER PRIMARY KEY, blend VECTOR TEXT NOT NULL, created REAL NOT NULL, good INTEGER NOT NULL,
    requests INTEGER NOT NULL DEFAULT 0, sums VECTOR TEXT NOT NULL, counts VECTOR TEXT NOT NULL  -- of rewards told
);
"""
_FEEDBACK = (
    "SELECT f.seq, f.slot, f.source, f.task, f.reward, r.posterior, f.client, COALESCE(r.novel, 0) AS novel, "
    "f.id, f.label "
    "FROM feedback f LEFT JOIN requests r ON r.id = f.id "
    "WHERE f.seq > :after AND f.seq <= :upto ORDER BY f.seq"
)
_FEEDBACK_OF_SLOT = _FEEDBACK.replace("WHERE", "WHERE f.slot = :slot AND")
_COUNT = (
    "UPDATE models SET requests = requests + :count WHERE slot = :slot AND place = :place",
    "UPDATE versions SET requests = requests + :count "
    "WHERE version = (SELECT version FROM models WHERE slot = :slot AND place = :place)",
)
_OVER = (  # slot of the request, and of the feedback, that is one too many, counted from the newest
    ("SELECT id FROM requests ORDER BY id DESC LIMIT 1 OFFSET ?", slot_of),
    ("SELECT slot FROM feedback ORDER BY slot DESC LIMIT 1 OFFSET ?", int),
)
_FORGET = tuple(f"DELETE FROM {table} WHERE slot < ?" for table in ("feedback", "models", "slots"))  # noqa: S608


class RequestRow(NamedTuple):
    """One answered request."""

    id: bytes
    posterior: FloatArray  # (V,)
    logits: FloatArray | None  # (columns,)
    novel: bool = False  # unlike any known task


class FeedbackRow(NamedTuple):
    """One piece of feedback, checked and scored."""

    id: bytes
    source: str
    task: int | None
    reward: float
    client: str = ""
    label: float | None = None


def shown(values: FloatArray) -> str:
    """Write a vector as the store does: JSON, NaN as null."""
    return json.dumps(values.tolist()).replace("NaN", "null")


def vector(text: bytes | str) -> FloatArray:
    """Read a vector back."""
    with reading("the store"):
        return frozen([np.nan if value is None else value for value in json.loads(text)])


def half(values: FloatArray) -> bytes:
    """Write a vector in half the digits."""
    return values.astype(np.float32).tobytes()


def from_half(blob: bytes) -> FloatArray:
    """Read it back."""
    return np.frombuffer(blob, dtype=np.float32).astype(np.float64)


@contextmanager
def reading(what: object) -> Iterator[None]:
    """Say of whatever a block cannot make sense of that it is damaged."""
    try:
        yield
    except (InputError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StateError(f"{what} is damaged ({error}); restore it from a copy") from None


sqlite3.register_converter("VECTOR", vector)
sqlite3.register_converter("FLOATS", from_half)


class StoreReader:
    """What a store holds."""

    def __init__(self, folder: Path, connection: sqlite3.Connection) -> None:
        self.folder = folder
        self._read, self._reading = connection, threading.Lock()
        self.oldest = int(self.meta("oldest") or 0)  # slot; feedback for earlier ones is not taken

    def meta(self, key: str) -> Any:
        """Look up a named value; None if there is none."""
        found = self._rows("SELECT value FROM meta WHERE key = ?", (key,))
        return found[0]["value"] if found else None

    def feedback(self, *, after: int, upto: int = 1 << 62, slot: int | None = None) -> list[Given]:
        """List the feedback with after < seq ≤ upto, of one slot or of all, oldest first."""
        query = _FEEDBACK if slot is None else _FEEDBACK_OF_SLOT
        rows = self._rows(query, {"after": after, "upto": upto, "slot": slot})
        return [Given(**row | {"place": place_of(row["id"]), "novel": bool(row["novel"])}) for row in rows]

    def counts(self) -> dict[str, int]:
        """Count what there is."""
        return {name: self._number(f"SELECT COUNT(*) FROM {name}") for name in ("requests", "feedback")}  # noqa: S608

    def last_seq(self) -> int:
        """The newest feedback's number."""
        return self._number("SELECT MAX(seq) FROM feedback")

    @property
    def next_slot(self) -> int:
        """The first number that no slot has had."""
        return self._number("SELECT MAX(slot) + 1 FROM slots")

    @property
    def last_version(self) -> int:
        """The highest number that a merge version has had."""
        return max(self._number(f"SELECT MAX(version) FROM {table}") for table in ("models", "versions"))  # noqa: S608

    def slots(self, *, before: int | None = None, limit: int = -1) -> list[dict[str, Any]]:
        """Read slots with their models, newest first."""
        query = "SELECT * FROM slots WHERE slot < ? AND slot >= ? ORDER BY slot DESC LIMIT ?"
        return self._with_models(query, (1 << 62) if before is None else before, self.oldest, limit)

    def untold(self) -> list[dict[str, Any]]:
        """Read the slots whose reward the router does not know, with their models, oldest first."""
        return self._with_models("SELECT * FROM slots WHERE NOT told ORDER BY slot")

    def versions(self) -> list[dict[str, Any]]:
        """Read versions, newest first."""
        return self._rows("SELECT * FROM versions ORDER BY version DESC")

    def _with_models(self, query: str, *values: int) -> list[dict[str, Any]]:
        slots = {row["slot"]: row | {"models": []} for row in self._rows(query, values)}
        span = (min(slots, default=0), max(slots, default=-1))
        for model in self._rows("SELECT * FROM models WHERE slot BETWEEN ? AND ? ORDER BY slot, place", span):
            if model["slot"] in slots:
                slots[model["slot"]]["models"].append(model)
        return list(slots.values())

    def _rows(self, query: str, values: Any = ()) -> list[dict[str, Any]]:
        with self._reading:
            try:
                return [dict(row) for row in self._read.execute(query, values)]
            except sqlite3.Error as error:
                raise ServiceError(f"the state cannot be read ({error}); restore it from a copy") from None

    def _number(self, query: str) -> int:
        ((found,),) = (row.values() for row in self._rows(query))
        return int(found or 0)


@contextmanager
def peek(folder: Path) -> Iterator[StoreReader]:
    """Read a store as of one instant, beside a server or without one; nothing in its folder changes."""
    path = folder / FILE
    if not path.is_file():
        raise StateError(f"{folder} holds no state of a server; give the folder of its --state")
    used = path.with_name(f"{FILE}-wal").exists()  # else SQLite would make a log to read
    address = f"{path.absolute().as_uri()}?{'mode=ro' if used else 'immutable=1'}"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=10.0, detect_types=sqlite3.PARSE_DECLTYPES)) as opened:
            opened.row_factory = sqlite3.Row
            opened.execute("BEGIN")
            _check_version(opened, path)
            yield StoreReader(folder, opened)
    except sqlite3.Error as error:
        raise StateError(f"{path} cannot be read ({error}); restore it from a copy") from None


class Store(StoreReader):
    """The file, one writer at a time, readers beside it."""

    def __init__(self, folder: Path) -> None:
        """Open the store of a folder, or make one; nobody else may until it is closed."""
        self._writing, path = threading.Lock(), folder / FILE
        try:
            with ExitStack() as opened:
                make_private(folder)
                opened.callback(os.close, _locked(folder))
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # before SQLite makes it, and a log like it
                path.chmod(0o600)  # the key that request ids are recognised by is in it
                self._write = opened.enter_context(closing(_connect(path)))
                _make_tables(self._write, path)
                self._files = [(file, file.stat().st_ino) for file in (path, path.with_name(f"{FILE}-wal"))]
                super().__init__(folder, opened.enter_context(closing(_connect(path))))
                self._opened = opened.pop_all()
        except (sqlite3.Error, OSError, ValueError, TypeError) as error:
            advice = "restore the folder from a copy, or give another --state"
            raise StateError(f"{path} cannot be used ({error}); {advice}") from None

    def close(self) -> None:
        """Release the file and the folder."""
        with self._writing, self._reading:
            self._opened.close()

    # --- named values -----------------------------------------------------------------------------------------------

    def set_meta(self, key: str, value: Any) -> None:
        """Keep a named value."""
        with self.transaction(**{key: value}):
            pass

    @property
    def key(self) -> bytes:
        """The secret that request ids are recognised by."""
        return bytes(self.meta("key"))

    def begin_epoch(self, slot: int) -> list[Epoch]:
        """Note that a server starts at an open slot; all starts whose request ids are known, this one last."""
        with reading(self.folder):
            known = [(bytes.fromhex(name), int(first)) for name, first in json.loads(self.meta("epochs") or "[]")]
        epochs = [*known, (os.urandom(EPOCH_BYTES), slot)][-MOST_EPOCHS:]
        self.set_meta("epochs", json.dumps([(name.hex(), first) for name, first in epochs]))
        return epochs

    # --- requests and feedback --------------------------------------------------------------------------------------

    def add_requests(self, rows: Sequence[RequestRow]) -> None:
        """Remember answered requests, and count them for the models and versions that answered."""
        values = [
            (row.id, half(row.posterior), None if row.logits is None else half(row.logits), row.novel) for row in rows
        ]
        counts = Counter((slot_of(row.id), place_of(row.id)) for row in rows)
        with self.transaction() as write:
            write.executemany("INSERT OR IGNORE INTO requests VALUES (?, ?, ?, ?)", values)
            for (slot, place), count in counts.items():
                for statement in _COUNT:
                    write.execute(statement, {"slot": slot, "place": place, "count": count})

    def add_feedback(self, rows: Sequence[FeedbackRow]) -> list[Outcome]:
        """Take feedback in, one per id; it is on disk when this returns."""
        outcomes: list[Outcome] = []
        now = time.time()
        with self.transaction() as write:
            for row in rows:
                values = (row.id, slot_of(row.id), row.source, row.task, row.reward, now, row.client, row.label)
                done = write.execute("INSERT OR IGNORE INTO feedback VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)", values)
                outcomes.append("accepted" if done.rowcount else "repeated")
        return outcomes

    def logits_of(self, ids: Sequence[bytes]) -> dict[bytes, FloatArray]:
        """Look up the logits (columns,) of answered requests, as far as they were kept."""
        found = (self._rows("SELECT id, logits FROM requests WHERE id = ?", (key,)) for key in ids)
        return {row["id"]: row["logits"] for rows in found for row in rows if row["logits"] is not None}

    def forget(self, *, slots: int, requests: int) -> None:
        """Drop the oldest slots, so that at most so many slots, and about so many requests, remain."""
        newest = self.next_slot - 1
        oldest = newest - slots + 1
        for query, slot_in in _OVER:
            for row in self._rows(query, (requests,)):
                oldest = max(oldest, slot_in(*row.values()) + 1)
        oldest = min(oldest, newest)  # what is being served always stays
        if oldest <= self.oldest:
            return
        with self.transaction(oldest=oldest) as write:
            write.execute("DELETE FROM requests WHERE id < ?", (oldest.to_bytes(4, "big"),))
            for statement in _FORGET:
                write.execute(statement, (oldest,))
        self.oldest = oldest

    # --- the file ---------------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self, **meta: Any) -> Iterator[sqlite3.Connection]:
        """Do all of the block and keep the named values, or nothing; a disk that fails is a ServiceError."""
        with self._writing:
            try:
                with self._write:
                    self._write.execute("BEGIN IMMEDIATE")
                    yield self._write
                    self._write.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", meta.items())
                self.check_files()
            except (sqlite3.Error, OSError) as error:
                raise ServiceError(f"the state cannot be written ({error}); nothing was taken in") from None

    def check_files(self) -> None:
        """Check that the files are still in the folder: SQLite can write to a deleted file without an error."""
        for path, number in self._files:
            if not path.exists() or path.stat().st_ino != number:
                raise OSError(f"{path.name} was taken away under the server: restart it")


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=10.0, isolation_level=None, check_same_thread=False, detect_types=sqlite3.PARSE_DECLTYPES
    )
    connection.row_factory = sqlite3.Row
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk, not only out of the process
        connection.execute(f"PRAGMA journal_size_limit = {16 << 20}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _make_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables in an empty file, all or nothing; refuse those of another version."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            if any(path.parent.glob("router-*.state")):
                raise ValueError("it is empty, beside the router that it knew")
            for statement in _TABLES.split(";\n"):
                connection.execute(statement)
            connection.execute("INSERT INTO meta VALUES ('version', ?)", (VERSION,))
            connection.execute("INSERT INTO meta SELECT 'key', randomblob(?)", (KEY_BYTES,))
            return
    _check_version(connection, path)


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    found = connection.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()
    if found is None or found[0] != VERSION:
        made = "tanbr 0.1" if found is not None and found[0] in range(1, 5) else "another tanbr"
        raise StateError(f"{path.parent} was made by {made}; start a new state folder, or use the tanbr that wrote it")


def make_private(folder: Path) -> None:
    """Make the folder if it is missing, for its owner alone; an empty one becomes private, too."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not any(folder.iterdir()) and folder.stat().st_uid == os.getuid():
        folder.chmod(0o700)


def _locked(folder: Path) -> int:
    """Lock a folder for this server until the file is closed, or the process ends, however it ends."""
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        other = os.read(file, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(file)
        raise StateError(
            f"{folder} is in use by another server (process {other}); stop that one, or give another --state"
        ) from None
    os.ftruncate(file, 0)
    os.write(file, f"{os.getpid()}\n".encode())
    return file
