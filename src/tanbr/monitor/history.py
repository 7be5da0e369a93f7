"""A bounded, mergeable sample of the labelled history: what the calibration is fitted on.

Of each task the texts with the smallest hashes are kept (a bottom-k sample: uniform over distinct texts). Which
texts those are does not depend on the order of arrival or on which replica saw them, so samples of two replicas
merge into exactly the sample of one that saw both. Kept are hashes and surface features, never the text.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tanbr.monitor.bounds import bounded
from tanbr.monitor.features import SURFACE, VIEWS, Features
from tanbr.monitor.ragged import Ragged


class History:
    """At most `capacity` distinct texts of each task, with how often each was learned."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._features = Features.empty()
        self._tasks = np.zeros(0, dtype=np.int64)
        self._counts = np.zeros(0, dtype=np.int64)
        self._pending = 0

    def add(self, features: Features, tasks: NDArray[np.int64], counts: NDArray[np.int64] | None = None) -> None:
        """Take in texts whose tasks are known (n,)."""
        counts = np.ones(len(features), dtype=np.int64) if counts is None else counts
        self._features = Features.concatenate([self._features, features])
        self._tasks = np.concatenate([self._tasks, tasks])
        self._counts = np.concatenate([self._counts, counts])
        self._pending += len(features)
        if self._pending > self.capacity:
            self._compact()

    def merge(self, other: "History") -> None:
        """Take in another's sample."""
        self.add(*other.sample())

    def sample(self) -> tuple[Features, NDArray[np.int64], NDArray[np.int64]]:
        """Give the sample: n texts, their tasks (n,), how often each was learned (n,); sorted, so always the same."""
        if self._pending:
            self._compact()
        return self._features, self._tasks, self._counts

    def _compact(self) -> None:
        order = np.lexsort((self._features.keys, self._tasks))
        keys, tasks = self._features.keys[order], self._tasks[order]
        fresh = np.ones(len(order), dtype=bool)
        fresh[1:] = (keys[1:] != keys[:-1]) | (tasks[1:] != tasks[:-1])
        firsts = np.flatnonzero(fresh)
        counts = np.add.reduceat(self._counts[order], firsts)
        tasks = tasks[firsts]
        rank = np.arange(len(firsts)) - np.searchsorted(tasks, tasks)  # place among its task's keys
        kept = rank < self.capacity
        self._features = self._features.take(order[firsts[kept]])
        self._tasks, self._counts, self._pending = tasks[kept], counts[kept], 0

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Give the whole state, by name."""
        features, tasks, counts = self.sample()
        return {
            "keys": features.keys,
            "surface": features.surface,
            "tasks": tasks,
            "counts": counts,
            **{f"{name}.values": view.values for name, view in features.views.items()},
            **{f"{name}.starts": view.starts for name, view in features.views.items()},
        }

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take the state `arrays` gave; ValueError for one that cannot be."""
        keys, surface, tasks, counts = (arrays[name] for name in ("keys", "surface", "tasks", "counts"))
        views = {name: Ragged(arrays[f"{name}.values"], arrays[f"{name}.starts"]) for name in VIEWS}
        sound = surface.shape == (len(keys), len(SURFACE)) and len(tasks) == len(counts) == len(keys)
        for view in views.values():
            sound = sound and len(view) == len(keys) and view.starts[0] == 0 and view.starts[-1] == len(view.values)
            sound = sound and bool((view.lengths > 0).all())
        if not sound or not bounded(surface) or (tasks < 0).any() or (counts < 1).any():
            raise ValueError("the texts of its history are not of one piece")
        self._features, self._tasks, self._counts = Features(keys, views, surface), tasks, counts
        self._pending = len(keys)
