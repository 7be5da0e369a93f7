"""What the service remembers: one SQLite file in a private folder that one server uses at a time.

The router's and monitor's states are files beside it. The turn of a slot (`journal.py`) names these files in the
transaction that says which feedback the router was told, so no feedback is lost and none counts twice.
"""

import fcntl
import json
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from tanbr.errors import StateError
from tanbr.loop.rewards import Given
from tanbr.serve.ids import EPOCH_BYTES, KEY_BYTES, MOST_EPOCHS, Epoch, place_of, slot_of
from tanbr.serve.records import Outcome, ServiceError
from tanbr.serve.rows import FeedbackRow, RequestRow, floats, vector
from tanbr.types import FloatArray

FILE = "store.sqlite3"
LOCK = "lock"
OURS = (LOCK, f"{FILE}*", "*.state", ".*.state.*")  # what servers write into a folder
VERSION = 5  # of the tables; tanbr 0.1 had 1 to 4
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
    reason TEXT NOT NULL DEFAULT 'chosen'  -- a `loop.Reason`
);
CREATE TABLE versions (
    version INTEGER PRIMARY KEY, blend TEXT NOT NULL, created REAL NOT NULL, good INTEGER NOT NULL DEFAULT 1,
    requests INTEGER NOT NULL DEFAULT 0, sums TEXT NOT NULL, counts TEXT NOT NULL  -- of rewards told, per task
);
"""
_LOGITS = "SELECT logits FROM requests WHERE id = ?"
_ADD_FEEDBACK = "INSERT OR IGNORE INTO feedback VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)"
_FEEDBACK = (
    "SELECT f.seq, f.slot, f.source, f.task, f.reward, r.posterior, f.client, COALESCE(r.novel, 0), f.id "
    "FROM feedback f LEFT JOIN requests r ON r.id = f.id "
    "WHERE f.seq > :after AND f.seq <= :upto ORDER BY f.seq"
)
_FEEDBACK_OF_SLOT = _FEEDBACK.replace("WHERE", "WHERE f.slot = :slot AND")
_OVER = (  # slot of the request, and of the feedback, that is one too many, counted from the newest
    ("SELECT id FROM requests ORDER BY id DESC LIMIT 1 OFFSET ?", slot_of),
    ("SELECT slot FROM feedback ORDER BY slot DESC LIMIT 1 OFFSET ?", int),
)
_VECTORS = {"mix", "blend", "estimate", "estimates", "reward", "counts", "sums"}
_FORGET = tuple(f"DELETE FROM {table} WHERE slot < ?" for table in ("feedback", "measured", "models", "slots"))  # noqa: S608


class Store:
    """The file, one writer at a time, readers beside it."""

    def __init__(self, folder: Path) -> None:
        """Open the store of a folder, or make one; nobody else may until it is closed."""
        self.folder = folder
        self._writing, self._reading = threading.Lock(), threading.Lock()
        path = folder / FILE
        try:
            self._made = make_private(folder)
            self._lock = FolderLock(folder)
            opened, self._new = ExitStack(), not path.exists()
            try:
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # before SQLite makes it, and a log like it
                path.chmod(0o600)  # the key that request ids are recognised by is in it
                self._write = opened.enter_context(closing(_connect(path)))
                _make_tables(self._write, path)
                self._read = opened.enter_context(closing(_connect(path)))
                self._files = [(file, file.stat().st_ino) for file in (path, path.with_name(f"{FILE}-wal"))]
                self.oldest = int(self.meta("oldest") or 0)  # slot; feedback for earlier ones is not taken
            except BaseException:
                opened.close()
                self._lock.release()
                raise
        except (sqlite3.Error, OSError, ValueError, TypeError) as error:
            raise StateError(f"{path} cannot be used ({error}); give a folder that can be written to") from None

    def close(self, *, unused: bool = False) -> None:
        """Release the file and the folder; with `unused`, delete what this store made, unless it has a slot."""
        unused = unused and self._new and self.next_slot == 0
        with self._writing, self._reading:
            self._read.close()
            self._write.close()
            if unused:
                for file in self.folder.glob(f"{FILE}*"):
                    file.unlink(missing_ok=True)
            self._lock.release(remove=unused)
            with suppress(OSError):  # somebody else has put something there
                for folder in self._made if unused else ():
                    folder.rmdir()

    def meta(self, key: str) -> Any:
        """Look up a named value; None if there is none."""
        with self._looking():
            found = self._read.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if found is None else found[0]

    def begin_epoch(self, slot: int) -> list[Epoch]:
        """Note that a server starts at an open slot; all starts whose request ids are known, this one last."""
        try:
            saved = json.loads(self.meta("epochs") or "[]")
            known = [Epoch(bytes.fromhex(name), int(first)) for name, first in saved]
        except (ValueError, TypeError, RecursionError) as error:
            raise StateError(f"{self.folder} holds no list of epochs ({error}); restore it from a copy") from None
        epochs = [*known, Epoch(os.urandom(EPOCH_BYTES), slot)][-MOST_EPOCHS:]
        self.set_meta("epochs", json.dumps([[epoch.name.hex(), epoch.first] for epoch in epochs]))
        return epochs

    @property
    def key(self) -> bytes:
        """The secret that request ids are recognised by."""
        key = self.meta("key")
        if not isinstance(key, bytes) or len(key) != KEY_BYTES:
            raise StateError(f"{self.folder} holds no key for request ids; restore it from a copy")
        return key

    def set_meta(self, key: str, value: Any) -> None:
        """Keep a named value."""
        with self.transaction(**{key: value}):
            pass

    def add_requests(self, rows: Sequence[RequestRow]) -> None:
        """Remember answered requests."""
        with self.transaction() as write:
            for row in rows:
                logits = None if row.logits is None else row.logits.astype(np.float32).tobytes()
                text = None if row.text is None else json.dumps(row.text)
                posterior = row.posterior.astype(np.float32).tobytes()
                values = (row.id, row.version, row.time, posterior, logits, text, row.novel)
                write.execute("INSERT OR IGNORE INTO requests VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    def add_feedback(self, rows: Sequence[FeedbackRow]) -> list[Outcome]:
        """Take feedback in, one per id; it is on disk when this returns."""
        outcomes: list[Outcome] = []
        now = time.time()
        with self.transaction() as write:
            for row in rows:
                values = (row.id, slot_of(row.id), row.source, row.task, row.reward, now, row.client)
                done = write.execute(_ADD_FEEDBACK, values)
                outcomes.append("accepted" if done.rowcount else "repeated")
        return outcomes

    def logits_of(self, ids: Sequence[bytes]) -> dict[bytes, FloatArray]:
        """Look up the logits (columns,) of answered requests, as far as they were kept."""
        with self._looking():
            found = {key: self._read.execute(_LOGITS, (key,)).fetchone() for key in ids}
        return {key: floats(row[0]) for key, row in found.items() if row is not None and row[0] is not None}

    def feedback(self, *, after: int, upto: int | None = None, slot: int | None = None) -> list[Given]:
        """List the feedback with after < seq ≤ upto, of one slot or of all, oldest first."""
        with self._looking():
            rows = self._read.execute(
                _FEEDBACK_OF_SLOT if slot is not None else _FEEDBACK,
                {"after": after, "upto": (1 << 62) if upto is None else upto, "slot": slot},
            ).fetchall()
        return [
            Given(
                seq, of, key[4], source, task, reward, None if blob is None else floats(blob), client, bool(novel), key
            )
            for seq, of, source, task, reward, blob, client, novel, key in rows
        ]

    def last_seq(self) -> int:
        """The newest feedback's number."""
        with self._looking():
            return int(self._read.execute("SELECT COALESCE(MAX(seq), 0) FROM feedback").fetchone()[0])

    def count_requests(self, slot: int, models: int = 1) -> Counter[int]:
        """How many requests of a slot are remembered, by the place of the model that answered."""
        bounds = slot.to_bytes(4, "big"), (slot + 1).to_bytes(4, "big")
        query = "SELECT substr(id, 1, 5), COUNT(*) FROM requests WHERE id >= ? AND id < ? GROUP BY substr(id, 1, 5)"
        counts: Counter[int] = Counter()
        with self._looking():
            for head, count in self._read.execute(query, bounds):
                counts[place_of(head, models)] += count
        return counts

    @property
    def next_slot(self) -> int:
        """The first number that no slot has had."""
        with self._looking():
            return int(self._read.execute("SELECT COALESCE(MAX(slot) + 1, 0) FROM slots").fetchone()[0])

    @property
    def last_version(self) -> int:
        """The highest number that a merge version has had."""
        highest = "(SELECT COALESCE(MAX(version), 0) FROM slots), (SELECT COALESCE(MAX(version), 0) FROM versions)"
        with self._looking():
            return int(self._read.execute(f"SELECT MAX({highest})").fetchone()[0])

    def slots(self, *, before: int | None = None, limit: int = -1) -> list[dict[str, Any]]:
        """Read slots, newest first, their vectors decoded."""
        bound = (1 << 62) if before is None else before
        query = "SELECT * FROM slots WHERE slot < ? AND slot >= ? ORDER BY slot DESC LIMIT ?"
        return self._with_models(self._rows(query, (bound, self.oldest, limit)))

    def untold(self) -> list[dict[str, Any]]:
        """Read the slots whose reward the router does not know, oldest first."""
        return self._with_models(self._rows("SELECT * FROM slots WHERE NOT told ORDER BY slot", ()))

    def versions(self) -> list[dict[str, Any]]:
        """Read versions, newest first."""
        return self._rows("SELECT * FROM versions ORDER BY version DESC", ())

    def _with_models(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add to each slot the list of its models."""
        numbers = [row["slot"] for row in rows]
        span = (min(numbers, default=0), max(numbers, default=-1))
        models: dict[int, list[dict[str, Any]]] = {number: [] for number in numbers}
        for model in self._rows("SELECT * FROM models WHERE slot >= ? AND slot <= ? ORDER BY slot, place", span):
            models.setdefault(model["slot"], []).append(model)
        return [row | {"models": models[row["slot"]]} for row in rows]

    def measured(self, slot: int) -> dict[int, dict[str, FloatArray]]:
        """Rewards that the server gave itself: place of a slot's model → source → sums and counts (2, V)."""
        found: dict[int, dict[str, FloatArray]] = {}
        for row in self._rows("SELECT place, source, sums, counts FROM measured WHERE slot = ?", (slot,)):
            found.setdefault(row["place"], {})[row["source"]] = np.array([row["sums"], row["counts"]])
        return found

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

    @contextmanager
    def _looking(self) -> Iterator[None]:
        with self._reading:
            try:
                yield
            except sqlite3.Error as error:
                raise ServiceError(f"the state cannot be read ({error}); restore it from a copy") from None

    def forget(self, *, slots: int, requests: int) -> None:
        """Drop the oldest slots, so that at most so many slots, and about so many requests, remain."""
        with self._looking():
            newest = self._read.execute("SELECT MAX(slot) FROM slots").fetchone()[0] or 0
            oldest = newest - slots + 1
            for query, slot_in in _OVER:
                over = self._read.execute(query, (requests,)).fetchone()
                if over is not None:
                    oldest = max(oldest, slot_in(over[0]) + 1)
        oldest = min(oldest, newest)  # what is being served always stays
        if oldest <= self.oldest:
            return
        with self.transaction(oldest=oldest) as write:
            write.execute("DELETE FROM requests WHERE id < ?", (oldest.to_bytes(4, "big"),))
            for statement in _FORGET:
                write.execute(statement, (oldest,))
        self.oldest = oldest

    def _rows(self, query: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        with self._looking():
            cursor = self._read.execute(query, values)
            names = [column[0] for column in cursor.description]
            rows = cursor.fetchall()
        return [
            {
                name: vector(value) if name in _VECTORS and value is not None else value
                for name, value in zip(names, row, strict=True)
            }
            for row in rows
        ]


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
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
            for statement in _TABLES.split(";\n"):
                connection.execute(statement)
            connection.execute("INSERT INTO meta VALUES ('version', ?)", (VERSION,))
            connection.execute("INSERT INTO meta SELECT 'key', randomblob(?)", (KEY_BYTES,))
            return
        found = connection.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()
    version = found[0] if found else None
    if version in range(1, VERSION):
        raise StateError(f"{path.parent} was made by tanbr 0.1; start a new state folder")
    if version != VERSION:
        raise StateError(f"{path} is of version {version}, this tanbr uses {VERSION}; use the tanbr that wrote it")


def make_private(folder: Path) -> list[Path]:
    """Make the folder if it is missing, and let only its owner read it and the files that servers wrote into it.

    A folder that holds other files as well keeps its permissions. Gives the folders that were made, innermost first.
    """
    if not folder.is_dir():
        made = [one for one in (folder, *folder.parents) if not one.exists()]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return made
    files = list(folder.iterdir())
    ours = [file for file in files if any(fnmatchcase(file.name, pattern) for pattern in OURS)]
    if folder.stat().st_uid == os.getuid() and len(ours) == len(files):
        folder.chmod(0o700)
    for file in ours:
        if file.is_file() and not file.is_symlink() and file.stat().st_uid == os.getuid():
            file.chmod(0o600)
    return []


class FolderLock:
    """Held while a server uses a folder; the system releases it when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._file).st_nlink == 0:
                raise OSError("the server that held it has removed it")
        except OSError:
            other = os.read(self._file, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(self._file)
            raise StateError(
                f"{folder} is in use by another server (process {other}); stop that one, or give another --state"
            ) from None
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())

    def release(self, *, remove: bool = False) -> None:
        """Let another server use the folder; with `remove` the lock's file goes too."""
        if self._file >= 0:
            if remove:
                self._path.unlink(missing_ok=True)
            os.close(self._file)
        self._file = -1
