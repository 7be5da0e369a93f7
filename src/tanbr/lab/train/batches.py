"""Labelled batches, drawn by step number alone, so that a resumed run sees the same ones.

A task's rows are encoded once. An epoch visits each of them once, in batches of like length: rows are shuffled, sorted
by length within stretches of the shuffle, cut into batches, and the batches are shuffled.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tanbr.lab.train.objectives import Batch, Objective, joined
from tanbr.tasks.rows import Row, Task
from tanbr.types import FloatArray

_STRETCH = 32  # batches' worth of shuffled rows that are sorted by length


class Batches:
    """Draws batches of each task, `sizes` (one number a task) rows at a time; what is drawn is put on `device`."""

    def __init__(
        self,
        rows: Mapping[str, Sequence[Row]],
        *,
        objective: Objective,
        sizes: Sequence[int],
        seed: int,
        device: str | torch.device = "cpu",
    ) -> None:
        self.sizes, self._seed, self.device = sizes, seed, torch.device(device)
        self._pools = [
            _weighed(objective.encode(rows[task.name]), task, rows[task.name]) for task in objective.space.tasks
        ]
        self._epochs: dict[int, tuple[int, Tensor]] = {}  # task → the epoch laid out last, (batches, size)

    def resized(self, sizes: Sequence[int]) -> "Batches":
        """Give batches of the same rows, of other sizes (V,)."""
        other = copy.copy(self)
        other.sizes, other._epochs = sizes, {}
        return other

    def of(self, task: int, step: int) -> Batch:
        """Give a task's batch of a step, padded to its own longest row."""
        pool, size = self._pools[task], min(self.sizes[task], len(self._pools[task]))
        epoch, number = divmod(step, len(pool) // size)
        if task not in self._epochs or self._epochs[task][0] != epoch:
            rng = torch.Generator().manual_seed((self._seed * 1_009 + task) * 1_000_003 + epoch)
            self._epochs[task] = epoch, _lay_out(pool.lengths, size, rng)
        return pool.take(self._epochs[task][1][number]).to(self.device)

    def at(self, step: int) -> Batch:
        """Give the batches of all tasks as one."""
        return joined([self.of(task, step) for task in range(len(self._pools))])

    def mixed(self, step: int, *, mix: FloatArray, size: int) -> Batch:
        """Draw `size` rows of the tasks by a mix (V,), with replacement."""
        rng = np.random.default_rng((self._seed, step))
        counts = rng.multinomial(size, mix)
        draws = [rng.integers(len(pool), size=n) for pool, n in zip(self._pools, counts, strict=True)]
        return joined(
            [pool.take(torch.from_numpy(rows)) for pool, rows in zip(self._pools, draws, strict=True) if len(rows)]
        ).to(self.device)


def _weighed(pool: Batch, task: Task, rows: Sequence[Row]) -> Batch:
    """Add the rows' weights, 1 on average: all labels weigh alike in a task whose metric is Matthews' correlation.

    Of CoLA's sentences 70% are acceptable; a model that calls all of them so has a low loss, and a correlation of 0.
    """
    weights = torch.ones(len(rows))
    if "matthews" in task.metrics:
        _, label, counts = np.unique([row.target for row in rows], return_inverse=True, return_counts=True)
        weights = torch.from_numpy((len(rows) / (len(counts) * counts))[label]).float()
    return replace(pool, truth={**pool.truth, "weight": weights})


def _lay_out(lengths: Tensor, size: int, rng: torch.Generator) -> Tensor:
    """Order rows of `lengths` (n,) as the batches of an epoch, (n // size, size)."""
    whole = len(lengths) // size * size
    stretches = torch.split(torch.randperm(len(lengths), generator=rng)[:whole], size * _STRETCH)
    batches = torch.cat([rows[lengths[rows].argsort(stable=True)] for rows in stretches]).view(-1, size)
    return batches[torch.randperm(len(batches), generator=rng)]
