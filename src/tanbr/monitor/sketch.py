"""Count-Min Sketches: how often each task's texts held a hashed n-gram, in constant memory.

A feature's count is the least of its counters over the rows (Cormode and Muthukrishnan, 2005): never too low, and
rarely too high. The counters of all tasks lie side by side, so that one look-up answers for every task; that, and
whole batches at a time, is why this is NumPy and not a call per feature into a library.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tanbr.monitor.tokens import Ragged
from tanbr.types import FloatArray

# Hash functions of a sketch, and counters of each for a task, a power of two: chosen on held-out parts of GLUE's train
# text.
ROWS, WIDTH = 3, 8192
SMOOTHING = 1.0  # Laplace's pseudo-count of an n-gram
# Odd multipliers of the rows' hash functions (multiply-shift, Dietzfelbinger and others 1997): fixed, so that a saved
# sketch is read the same in every process.
_MULTIPLIERS = np.random.default_rng(0).integers(0, 2**63, size=16, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
_CHUNK = 4096  # hashes looked up at once: they stay in the processor's cache


@dataclass(frozen=True, eq=False)
class CountMin:
    """Counters of V tasks."""

    counts: NDArray[np.int64]  # (ROWS, WIDTH, V)

    @staticmethod
    def empty(tasks: int) -> "CountMin":
        """Nothing is counted."""
        return CountMin(np.zeros((ROWS, WIDTH, tasks), dtype=np.int64))

    def add(self, features: Ragged, tasks: NDArray[np.int64]) -> "CountMin":
        """Count the n-grams of texts whose tasks are known (n,) too."""
        rows, width, size = self.counts.shape
        task = np.repeat(tasks, features.lengths)
        counts = self.counts.copy()
        for row, columns in enumerate(_columns(features.values, rows, width)):
            counts[row] += np.bincount(columns * size + task, minlength=width * size).reshape(width, size)
        return CountMin(counts)

    @property
    def totals(self) -> NDArray[np.int64]:
        """N-grams counted per task (V,)."""
        return np.asarray(self.counts[0].sum(axis=0))

    def log_table(self) -> NDArray[np.float32]:
        """Log-probability behind each counter (rows, width, V), Laplace-smoothed."""
        width = self.counts.shape[1]
        return np.log((self.counts + SMOOTHING) / (self.totals + SMOOTHING * width)).astype(np.float32)

    def leave_one_out(self, features: Ragged, tasks: NDArray[np.int64], counts: NDArray[np.int64]) -> FloatArray:
        """Log-likelihood (n, V) of texts that were learned themselves, `counts` times, without their own share."""
        rows, width, _ = self.counts.shape
        scores = log_likelihood([features], self.log_table()[None])[0]
        owner = features.owners
        task, times = tasks[owner], counts[owner]
        least = np.full(len(owner), np.inf)
        for row, columns in enumerate(_columns(features.values, rows, width)):
            _, inverse, own = np.unique(owner * width + columns, return_inverse=True, return_counts=True)
            np.minimum(least, self.counts[row][columns, task] - own[inverse] * times, out=least)
        totals = self.totals[task] - features.lengths[owner] * times
        logs = np.log((np.maximum(least, 0) + SMOOTHING) / (totals + SMOOTHING * width))
        scores[np.arange(len(features)), tasks] = np.bincount(owner, weights=logs, minlength=len(features))
        return scores


def log_likelihood(
    views: Sequence[Ragged],  # n rows each, none of them empty
    tables: NDArray[np.float32],  # (views, rows, width, V) a `log_table` for each
) -> FloatArray:
    """Log-likelihood of each text's n-grams under each task (views, n, V)."""
    count, rows, width, size = tables.shape
    flat = tables.reshape(-1, size)
    values = np.concatenate([view.values for view in views])
    places = _columns(values, rows, width)  # (rows, H) in `flat`
    places += np.arange(rows)[:, None] * width
    starts, end = [], 0
    for number, view in enumerate(views):
        starts.append(view.starts[:-1] + end)
        places[:, end : end + len(view.values)] += number * rows * width
        end += len(view.values)
    least = np.empty((end, size), dtype=np.float32)
    for start in range(0, end, _CHUNK):
        part = slice(start, start + _CHUNK)
        np.minimum.reduce(flat.take(places[:, part], axis=0, mode="clip"), axis=0, out=least[part])
    return np.add.reduceat(least, np.concatenate(starts), axis=0).reshape(count, -1, size).astype(np.float64)


def _columns(hashes: NDArray[np.uint64], rows: int, width: int) -> NDArray[np.int64]:
    """Find the counter of each hash in each row (rows, H)."""
    shift = np.uint64(64 - (width.bit_length() - 1))
    return ((hashes * _MULTIPLIERS[:rows, None]) >> shift).view(np.int64)
