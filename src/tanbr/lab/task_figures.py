"""The tasks' own metrics of a checkpoint, task by task."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tanbr.errors import CheckpointError
from tanbr.lab.corpus import Rows
from tanbr.lab.dense import with_start
from tanbr.lab.train.assemble import card_of
from tanbr.lab.train.objectives import Objective
from tanbr.merge import Moe
from tanbr.merge import open as open_moe

Figures: TypeAlias = dict[str, float]  # task name → its metric


def own_experts(moe: Moe, tasks: Sequence[str]) -> tuple[int, ...]:
    """Find the expert that was trained for each task, as the checkpoint's card says; none if it does not."""
    own = card_of(moe).experts_of(tasks)
    if own and max(own) >= moe.num_experts:
        raise CheckpointError(
            f"{moe.path}: tanbr.json names a task for expert {max(own)} of {moe.num_experts}; mend it"
        )
    return own


def figures(model: Any, objective: Objective, rows: Rows, **options: Any) -> Figures:
    """Score a model's answers to the rows of each task."""
    return {name: objective.figure(model, of_task, **options) for name, of_task in rows.items()}


def as_trained(checkpoint: Path, objective: Objective, rows: Rows, *, device: str = "cpu") -> dict[str, Figures]:
    """Score the uniform merge, and with `tags` each task by its own expert, where the checkpoint says which that is."""
    moe = open_moe(checkpoint, device=device)
    model = with_start(moe.dense())
    result = {"average": figures(model, objective, rows)}
    for name, expert in zip(rows, own_experts(moe, list(rows)), strict=False):  # none, or one for each task
        moe.merge_into(model, np.eye(moe.num_experts)[expert])
        result.setdefault("tags", {}).update(figures(model, objective, {name: rows[name]}))
    return result
