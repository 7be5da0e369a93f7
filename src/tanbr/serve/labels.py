"""The labels of a served model's head, and what a true label that comes later is worth."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tanbr.errors import InputError
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row, Task
from tanbr.types import FloatArray


@dataclass(frozen=True)
class HeadLabels(LabelSpace):
    """A label space whose columns are those of a given head, in its order: labels first, then graded tasks."""

    head: tuple[str, ...] = ()

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the head's columns."""
        return self.head

    @property
    def scales(self) -> dict[str, tuple[float, float]]:
        """Graded task → its scale."""
        return {task.name: task.scale for task in self.tasks if task.graded}

    def score(self, task: str, label: str | float, logits: FloatArray) -> float:
        """Reward in [0, 1] of the answer in logits (columns,), as the task scores it."""
        rows = [Row(task, "", self.number_of(task, label))]
        return float(self.rewards(rows, self.read(rows, logits[None]))[0])

    def number_of(self, task: str, label: str | float) -> float:
        """The number of a label, or a score as it is; InputError if the task does not have it."""
        spec = self.task(task)
        if spec.graded:
            low, high = spec.scale
            if isinstance(label, str) or not low <= label <= high:
                raise InputError(f"the label of {task} must be a number from {low:g} to {high:g} (got {label!r})")
            return float(label)
        if label not in spec.labels:
            raise InputError(f"the label of {task} must be one of {', '.join(spec.labels)} (got {label!r})")
        return float(spec.labels.index(str(label)))


def named_tasks(tasks: Sequence[Task], task: str | None, labels: Sequence[str] = ()) -> FloatArray | None:
    """Mark the tasks (V,), 1 or 0 each, that a client names, itself or by labels; None if it names none."""
    if task is not None:
        names = [one.name for one in tasks]
        if task not in names:
            raise InputError(f"unknown task {task!r}; this server knows {', '.join(names)}")
        return np.array([float(name == task) for name in names])
    found = np.array([float(bool(set(labels) & set(one.labels))) for one in tasks])
    return found if found.any() else None


def label_space(tasks: Sequence[Task], head: tuple[str, ...]) -> HeadLabels | None:
    """The labels of tasks on a head; None if the head does not have them all, or has graded columns among labels."""
    graded = [task.name for task in tasks if task.graded]
    wanted = {label for task in tasks for label in task.labels} | set(graded)
    fits = bool(wanted) and wanted <= set(head) and set(head[len(head) - len(graded) :]) == set(graded)
    return HeadLabels(tuple(tasks), head) if fits and len(set(head)) == len(head) else None
