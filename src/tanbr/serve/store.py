"""What the service remembers: one SQLite file. A transaction either happened or did not, whenever the process ends.

The router's and monitor's states are files beside it. The turn of a slot (`journal.py`) names the files that belong to
it in the same transaction that says which feedback the router in them was told: none is lost, none counts twice.
"""

import json
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from tanbr.errors import StateError
from tanbr.loop.rewards import Given
from tanbr.serve.folder import FolderLock, make_private
from tanbr.serve.ids import EPOCH_BYTES, KEY_BYTES, MOST_EPOCHS, Epoch, place_of, slot_of
from tanbr.serve.records import Outcome, ServiceError
from tanbr.serve.rows import FeedbackRow, RequestRow, floats, vector
from tanbr.serve.schema import bring_up_to_date
from tanbr.types import FloatArray

FILE = "store.sqlite3"
_LOGITS = "SELECT logits FROM requests WHERE id = ?"
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
                bring_up_to_date(self._write, path)
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
        """Let go of the file, and of the folder; what this store made goes with `unused`, if it has no slot."""
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
        """Look a setting of the file up; None if it has none."""
        with self._looking():
            found = self._read.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if found is None else found[0]

    def begin_epoch(self, slot: int) -> list[Epoch]:
        """Start another life of the server at an open slot: all whose ids are known, the new one last."""
        try:
            saved = json.loads(self.meta("epochs") or '[["", 0]]')
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
        """Keep a setting."""
        with self.transaction(**{key: value}):
            pass

    def add_requests(self, rows: Sequence[RequestRow]) -> None:
        """Remember answered requests."""
        with self.transaction() as write:
            write.executemany(
                "INSERT OR IGNORE INTO requests (id, version, time, posterior, logits, text, novel) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    (
                        row.id,
                        row.version,
                        row.time,
                        row.posterior.astype(np.float32).tobytes(),
                        None if row.logits is None else row.logits.astype(np.float32).tobytes(),
                        None if row.text is None else json.dumps(row.text),
                        row.novel,
                    )
                    for row in rows
                ),
            )

    def add_feedback(self, rows: Sequence[FeedbackRow]) -> list[Outcome]:
        """Take feedback in, one per id; it is on disk when this returns."""
        outcomes: list[Outcome] = []
        now = time.time()
        with self.transaction() as write:
            for row in rows:
                done = write.execute(
                    "INSERT OR IGNORE INTO feedback (id, slot, source, task, reward, time, client) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (row.id, slot_of(row.id), row.source, row.task, row.reward, now, row.client),
                )
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

    def versions(self, limit: int = -1) -> list[dict[str, Any]]:
        """Read versions, newest first."""
        return self._rows("SELECT * FROM versions ORDER BY version DESC LIMIT ?", (limit,))

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
        """Do all of the block, and set the given settings, or nothing; a disk that fails is a ServiceError."""
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
        """Make sure that what was written is still in the folder: a deleted file takes writes as if all were well."""
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
        decoded = []
        for row in rows:
            values_of = dict(zip(names, row, strict=True))
            for name in _VECTORS & values_of.keys():
                values_of[name] = None if values_of[name] is None else vector(values_of[name])
            decoded.append(values_of)
        return decoded


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
