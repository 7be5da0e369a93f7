"""Rows of unequal length in one flat array."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Ragged:
    """Row i is `values[starts[i]:starts[i + 1]]`."""

    values: NDArray[np.uint64]
    starts: NDArray[np.int64]  # (n + 1,)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many values each row holds (n,)."""
        return np.asarray(self.starts[1:] - self.starts[:-1])

    @property
    def owners(self) -> NDArray[np.int64]:
        """The row each value belongs to."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def take(self, rows: NDArray[np.int64]) -> "Ragged":
        """Copy the rows asked for, in that order."""
        lengths = self.lengths[rows]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        source = np.arange(starts[-1]) + np.repeat(self.starts[rows] - starts[:-1], lengths)
        return Ragged(self.values[source], starts)

    @staticmethod
    def concatenate(parts: Sequence["Ragged"]) -> "Ragged":
        """Put the rows of all parts below one another."""
        lengths = np.concatenate([np.zeros(1, dtype=np.int64), *(part.lengths for part in parts)])
        return Ragged(np.concatenate([part.values for part in parts]), np.cumsum(lengths))

    @staticmethod
    def empty() -> "Ragged":
        """No rows."""
        return Ragged(np.zeros(0, dtype=np.uint64), np.zeros(1, dtype=np.int64))
