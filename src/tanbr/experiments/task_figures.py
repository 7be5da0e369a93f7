"""The tasks' own metrics of a checkpoint, task by task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tanbr.merge import open as open_moe
from tanbr.tasks.card import read_card
from tanbr.tasks.rows import Row
from tanbr.train.objectives import Objective

Figures: TypeAlias = dict[str, float]  # task name → its metric


def figures(model: Any, objective: Objective, rows: Mapping[str, Sequence[Row]], **options: Any) -> Figures:
    """Score a model's answers to the rows of each task."""
    return {name: objective.figure(model, of_task, **options) for name, of_task in rows.items()}


def as_trained(checkpoint: Path, objective: Objective, rows: Mapping[str, Sequence[Row]]) -> dict[str, Figures]:
    """Score an MoE's uniform merge, and with `tags` (each task by its own expert) if its card tells these experts."""
    moe = open_moe(checkpoint)
    model = moe.dense()
    result = {"average": figures(model, objective, rows)}
    own = read_card(moe.path).experts_of(list(rows))
    for k, name in zip(own, rows, strict=bool(own)):
        moe.merge_into(model, np.eye(moe.num_experts)[k])
        result.setdefault("tags", {}).update(figures(model, objective, {name: rows[name]}))
    return result
