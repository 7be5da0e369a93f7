"""Count-Min Sketches: how often each task's texts held a hashed n-gram, in constant memory.

A feature's count is the least of its counters over the rows (Cormode and Muthukrishnan, 2005): never too low, and
rarely too high. Sketches of two replicas add up. The counters of all tasks lie side by side, so that one look-up
answers for every task; that, and whole batches at a time, is why this is NumPy and not a call per feature into
a library.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from tanbr.monitor.ragged import Ragged
from tanbr.types import FloatArray

# Odd multipliers of the rows' hash functions (multiply-shift, Dietzfelbinger and others 1997): fixed, so that
# sketches of different processes can be added.
_MULTIPLIERS = np.random.default_rng(0).integers(0, 2**63, size=16, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
_CHUNK = 4096


class CountMin:
    """Counters of V tasks: `rows` hash functions by `width` (a power of two) by V."""

    def __init__(self, tasks: int, *, rows: int, width: int) -> None:
        self.counts = np.zeros((rows, width, tasks), dtype=np.int64)

    def columns(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Find the counter of each hash in each row (rows, H)."""
        rows, width, _ = self.counts.shape
        shift = np.uint64(64 - (width.bit_length() - 1))
        return ((hashes * _MULTIPLIERS[:rows, None]) >> shift).astype(np.int64)

    def add(self, features: Ragged, tasks: NDArray[np.int64]) -> None:
        """Count the n-grams of texts whose tasks are known (n,)."""
        _, width, size = self.counts.shape
        task = np.repeat(tasks, features.lengths)
        for row, columns in enumerate(self.columns(features.values)):
            self.counts[row] += np.bincount(columns * size + task, minlength=width * size).reshape(width, size)

    def merge(self, other: "CountMin") -> None:
        """Add another's counts."""
        self.counts += other.counts

    @property
    def totals(self) -> NDArray[np.int64]:
        """N-grams counted per task (V,)."""
        return np.asarray(self.counts[0].sum(axis=0))

    def query(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Count of each hash for each task (H, V): never below the truth."""
        return np.asarray(np.min([self.counts[row][found] for row, found in enumerate(self.columns(hashes))], axis=0))

    def log_table(self, smoothing: float) -> NDArray[np.float32]:
        """Log-probability behind each counter (rows, width, V), Laplace-smoothed."""
        width = self.counts.shape[1]
        return np.log((self.counts + smoothing) / (self.totals + smoothing * width)).astype(np.float32)

    def log_likelihood(self, features: Ragged, table: NDArray[np.float32]) -> FloatArray:
        """Log-likelihood of each text's n-grams under each task (n, V); `table` is the `log_table`."""
        least = np.empty((len(features.values), table.shape[2]), dtype=np.float32)
        found = np.empty((_CHUNK, table.shape[2]), dtype=np.float32)
        for start in range(0, len(least), _CHUNK):  # a chunk stays in the processor's cache
            columns = self.columns(features.values[start : start + _CHUNK])
            chunk = least[start : start + _CHUNK]
            np.take(table[0], columns[0], axis=0, out=chunk, mode="clip")
            for row in range(1, len(table)):
                other = found[: len(chunk)]
                np.take(table[row], columns[row], axis=0, out=other, mode="clip")
                np.minimum(chunk, other, out=chunk)
        return _sums(least, features)

    def leave_one_out(
        self, features: Ragged, tasks: NDArray[np.int64], counts: NDArray[np.int64], smoothing: float
    ) -> FloatArray:
        """Log-likelihood (n, V) of texts that were learned themselves, `counts` times, without their own share."""
        width = self.counts.shape[1]
        scores = self.log_likelihood(features, self.log_table(smoothing))
        owner = features.owners
        task, times = tasks[owner], counts[owner]
        least = np.full(len(owner), np.inf)
        for row, columns in enumerate(self.columns(features.values)):
            _, inverse, own = np.unique(owner * width + columns, return_inverse=True, return_counts=True)
            np.minimum(least, self.counts[row][columns, task] - own[inverse] * times, out=least)
        totals = self.totals[task] - features.lengths[owner] * times
        logs = np.log((np.maximum(least, 0) + smoothing) / (totals + smoothing * width))
        scores[np.arange(len(features)), tasks] = np.bincount(owner, weights=logs, minlength=len(features))
        return scores


def _sums(values: NDArray[np.float32], features: Ragged) -> FloatArray:
    """Sum each text's rows: (H, V) to (n, V)."""
    shape = (len(features), len(values))
    ones = csr_array((np.ones(len(values), np.float32), np.arange(len(values)), features.starts), shape=shape)
    return np.asarray(ones @ values, dtype=np.float64)
