"""Batches that hold every task: encoded once, drawn by step number, so that a resumed run sees the same ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tanbr.moe.text import TextEncoder
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row

_ENCODE = 2_000  # rows tokenised at a time


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of all tasks, grouped by task in the order of the label space."""

    inputs: dict[str, Tensor]  # each (n, length)
    tasks: Tensor  # (n,) index of each row's task, which is also its expert
    columns: Tensor  # (n,) column of the head that the row teaches
    targets: Tensor  # (n,) what that column should hold; 1 for a label


class Batches:
    """Draws `per_task` rows of every task for a step."""

    def __init__(
        self, rows: Mapping[str, Sequence[Row]], *, space: LabelSpace, encoder: TextEncoder, per_task: int, seed: int
    ) -> None:
        self._per_task, self._seed = per_task, seed
        self._pools = [
            _encoded(rows[task.name], space=space, encoder=encoder, task=v) for v, task in enumerate(space.tasks)
        ]

    def at(self, step: int) -> Batch:
        """Give the batch of a step."""
        rng = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
        drawn = [_take(pool, torch.randint(len(pool.tasks), (self._per_task,), generator=rng)) for pool in self._pools]
        length = max(int(batch.inputs["attention_mask"].sum(dim=1).max()) for batch in drawn)
        inputs = {name: torch.cat([_fit(batch.inputs[name], length) for batch in drawn]) for name in drawn[0].inputs}
        return Batch(
            inputs=inputs,
            tasks=torch.cat([batch.tasks for batch in drawn]),
            columns=torch.cat([batch.columns for batch in drawn]),
            targets=torch.cat([batch.targets for batch in drawn]),
        )


def loss(logits: Tensor, batch: Batch, *, classes: int) -> Tensor:
    """Mean over rows: cross-entropy over all tasks' labels, binary cross-entropy for a graded task's column."""
    graded = batch.columns >= classes
    labels = F.cross_entropy(logits[~graded, :classes], batch.columns[~graded], reduction="sum")
    scores = logits[graded].gather(1, batch.columns[graded, None]).squeeze(1)
    grades = F.binary_cross_entropy_with_logits(scores, batch.targets[graded], reduction="sum")
    return (labels + grades) / len(batch.columns)


def _encoded(rows: Sequence[Row], *, space: LabelSpace, encoder: TextEncoder, task: int) -> Batch:
    parts = [encoder([row.text for row in rows[start : start + _ENCODE]]) for start in range(0, len(rows), _ENCODE)]
    length = max(part["input_ids"].shape[1] for part in parts)
    inputs = {name: torch.cat([_fit(part[name], length) for part in parts]) for name in parts[0]}
    return Batch(
        inputs=inputs,
        tasks=torch.full((len(rows),), task),
        columns=torch.tensor([space.column(row) for row in rows]),
        targets=torch.tensor([space.target(row) for row in rows]),
    )


def _take(pool: Batch, index: Tensor) -> Batch:
    inputs = {name: value[index] for name, value in pool.inputs.items()}
    return Batch(inputs=inputs, tasks=pool.tasks[index], columns=pool.columns[index], targets=pool.targets[index])


def _fit(value: Tensor, length: int) -> Tensor:
    """Cut or pad (with 0, which is padding for every input) to (n, length)."""
    return F.pad(value, (0, length - value.shape[1]))
