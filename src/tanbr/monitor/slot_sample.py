"""The requests of the open slot, as far as the mix needs them, in constant memory."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tanbr.monitor.bounds import MOST
from tanbr.types import FloatArray

_ROUNDING = 1e-9  # far above what adding up posteriors can gather


class SlotSample:
    """Posteriors of at most `capacity` distinct requests, how often each came, and the tags.

    Beyond the capacity the requests with the smallest hashes stay: a uniform sample of the distinct requests that
    depends neither on their order nor on how they were shared out over replicas.
    """

    def __init__(self, tasks: int, capacity: int) -> None:
        self.capacity = capacity
        self.requests = 0
        self.tagged: FloatArray = np.zeros(tasks)
        self._keys = np.zeros(0, dtype=np.uint64)
        self._rows = np.zeros((0, tasks + 2))  # posterior, novelty, 1; all times how often the request came
        self._pending: list[tuple[NDArray[np.uint64], FloatArray]] = []
        self._waiting = 0

    def add(self, keys: NDArray[np.uint64], posteriors: FloatArray, novel: NDArray[np.bool_]) -> None:
        """Take in untagged requests: hashes (n,), posteriors (n, V), whether each is unlike any task (n,)."""
        self._put(keys, np.column_stack([posteriors, novel, np.ones(len(keys))]))
        self.requests += len(keys)

    def skip(self, requests: int) -> None:
        """Count requests that nothing is known about."""
        self.requests += requests

    def add_tagged(self, tasks: NDArray[np.int64]) -> None:
        """Take in requests whose task the client sent (n,)."""
        self.tagged = self.tagged + np.bincount(tasks, minlength=len(self.tagged))
        self.requests += len(tasks)

    def merge(self, other: "SlotSample") -> None:
        """Take in another's requests of the same slot."""
        self._put(*other._compacted())
        self.tagged = self.tagged + other.tagged
        self.requests += other.requests

    def read(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Posteriors (m, V) of the distinct untagged requests, novelty in [0, 1] (m,), and counts (m,)."""
        _, rows = self._compacted()
        counts = rows[:, -1]
        return rows[:, :-2] / counts[:, None], rows[:, -2] / counts, counts

    def _put(self, keys: NDArray[np.uint64], rows: FloatArray) -> None:
        self._pending.append((keys, rows))
        self._waiting += len(keys)
        if self._waiting > self.capacity:
            self._compacted()

    def _compacted(self) -> tuple[NDArray[np.uint64], FloatArray]:
        if self._pending:
            keys = np.concatenate([self._keys, *(keys for keys, _ in self._pending)])
            rows = np.concatenate([self._rows, *(rows for _, rows in self._pending)])
            order = np.argsort(keys, kind="stable")
            self._keys, firsts = np.unique(keys[order], return_index=True)
            self._rows = np.add.reduceat(rows[order], firsts) if len(firsts) else rows
            self._keys, self._rows = self._keys[: self.capacity], self._rows[: self.capacity]
            self._pending, self._waiting = [], 0
        return self._keys, self._rows

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Give the whole state, by name."""
        keys, rows = self._compacted()
        return {"keys": keys, "rows": rows, "tagged": self.tagged, "requests": np.array(self.requests)}

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take the state `arrays` gave; ValueError for one that cannot be."""
        keys, rows, tagged, requests = arrays["keys"], arrays["rows"], arrays["tagged"], int(arrays["requests"])
        sound = rows.shape == (len(keys), len(tagged) + 2) and all(
            bool(((numbers >= 0) & (numbers <= MOST)).all()) for numbers in (rows, tagged, np.array(requests))
        )
        if not sound or (rows[:, -1] < 1).any() or (rows[:, :-1] > rows[:, -1:] * (1 + _ROUNDING)).any():
            raise ValueError("the requests of its open slot are not of one piece")
        self._keys, self._rows, self.tagged, self.requests = keys, rows, tagged, requests
