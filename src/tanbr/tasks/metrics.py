"""GLUE's metrics, the label space of a model's head, and the reward of one answer.

A model answers every request from one head over the union of the tasks' labels, plus a column per graded task. Nobody
tells it the task, so a label of another task is simply a wrong answer (class −1 below).
"""

import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from tanbr.errors import DataError
from tanbr.tasks import text_to_text
from tanbr.tasks.rows import Row, Task
from tanbr.types import FloatArray

Answer: TypeAlias = FloatArray | str  # a head's logits (columns,), or what a text-to-text model wrote
LEAST_CHANCE = 1e-3  # chance that a label's tasks keep, whatever the posterior says
Measure: TypeAlias = Callable[[FloatArray, FloatArray], float]  # targets (n,), answers (n,)


def _of(place: str, **options: Any) -> Measure:
    """Take a measure from a library when it is first asked for: scikit-learn takes half a second to import."""

    def measure(target: FloatArray, answer: FloatArray) -> float:
        return float(np.ravel(pkgutil.resolve_name(place)(target, answer, **options))[0])

    return measure


def _correlation(place: str) -> Measure:
    def measure(target: FloatArray, answer: FloatArray) -> float:  # a constant correlates with nothing
        return 0.0 if np.ptp(target) == 0 or np.ptp(answer) == 0 else _of(place)(target, answer)

    return measure


METRICS: dict[str, Measure] = {
    "accuracy": _of("sklearn.metrics:accuracy_score"),
    "f1": lambda target, answer: _of("sklearn.metrics:f1_score", zero_division=0.0)(target == 1, answer == 1),
    "matthews": _correlation("sklearn.metrics:matthews_corrcoef"),
    "pearson": _correlation("scipy.stats:pearsonr"),
    "spearman": _correlation("scipy.stats:spearmanr"),
}


def figure(task: Task, target: FloatArray, answer: FloatArray) -> float:
    """Score answers (n,) against targets (n,): the mean of the task's metrics, as in the paper's Table II.

    Where whole texts are wanted, answers are scores already.
    """
    if task.written:
        return float(np.mean(answer))
    return float(np.mean([METRICS[name](target, answer) for name in task.metrics]))


@dataclass(frozen=True)
class LabelSpace:
    """The columns of a model's head: every distinct label of the tasks, then one column per graded task."""

    tasks: tuple[Task, ...]

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the head's columns; a graded task's column bears the task's name."""
        labels = dict.fromkeys(label for task in self.tasks for label in task.labels)
        return (*labels, *(task.name for task in self.tasks if task.graded))

    @cached_property
    def classes(self) -> int:
        """How many of the columns are labels (they come first)."""
        return len(self.columns) - sum(task.graded for task in self.tasks)

    @cached_property
    def _has(self) -> NDArray[np.bool_]:
        """Whether each task has each label (V, C)."""
        return np.array([[label in task.labels for label in self.columns[: self.classes]] for task in self.tasks])

    @cached_property
    def _task(self) -> dict[str, Task]:
        return {task.name: task for task in self.tasks}

    def task(self, name: str) -> Task:
        """Look a task up by name."""
        if name not in self._task:
            raise DataError(f"unknown task {name!r}; the model knows {', '.join(self._task)}")
        return self._task[name]

    def column(self, row: Row) -> int:
        """Find the column of a row's label, or of its task if that is graded."""
        task = self.task(row.task)
        name = task.name if task.graded else task.labels[int(row.target)]
        return self.columns.index(name)

    def target(self, row: Row) -> float:
        """Give what the row's column should hold: 1 for a label, the score on [0, 1] for a graded task."""
        task = self.task(row.task)
        low, high = task.scale
        return (row.target - low) / (high - low) if task.graded else 1.0

    def read(self, rows: Sequence[Row], answers: Iterable[Answer]) -> FloatArray:
        """Read what is meant by an answer to each row (n,): label index (−1: none of the task's) or score."""
        found = np.empty(len(rows))
        for i, (row, said) in enumerate(zip(rows, answers, strict=True)):
            task = self.task(row.task)
            if isinstance(said, str):
                found[i] = text_to_text.understood(said, row, task)
            elif task.graded:
                low, high = task.scale
                found[i] = low + (high - low) / (1.0 + np.exp(-said[self.columns.index(task.name)]))
            else:
                found[i] = text_to_text.understood(self.columns[said[: self.classes].argmax()], row, task)
        return found

    def with_posterior(self, logits: FloatArray, posteriors: FloatArray) -> FloatArray:
        """Weigh p(label | text) by the chance, from posteriors (n, V), of a task with that label: logits (n, columns).

        An answer in another task's words is so repaired. Columns of graded tasks stay.
        """
        chance = np.maximum(posteriors @ self._has, LEAST_CHANCE)
        adjusted = np.array(logits, dtype=np.float64)
        adjusted[:, : self.classes] = log_softmax(adjusted[:, : self.classes], axis=1) + np.log(chance)
        return adjusted

    def by_posterior(self, answers: Sequence[Answer], posteriors: FloatArray) -> list[Answer]:
        """Do so with the answers of a head; what a text-to-text model wrote stays."""
        if not answers or any(isinstance(answer, str) for answer in answers):
            return list(answers)
        return list(self.with_posterior(np.array(answers), posteriors))

    def rewards(self, rows: Sequence[Row], answers: FloatArray) -> FloatArray:
        """Reward each answer in [0, 1]: right or wrong; for a score on the scale, 1 − error over half of it, or 0."""
        rewards = np.empty(len(rows))
        for i, row in enumerate(rows):
            task = self.task(row.task)
            error = abs(answers[i] - row.target)
            low, high = task.scale
            if task.written:
                rewards[i] = answers[i]
            elif task.graded:
                rewards[i] = max(0.0, 1.0 - 2 * error / (high - low)) if low <= answers[i] <= high else 0.0
            else:
                rewards[i] = float(error == 0)
        return rewards

    def slot_reward(self, rows: Sequence[Row], rewards: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Average rewards (n,) by task: reward (V,), NaN where unseen, and counts (V,)."""
        index = {task.name: v for v, task in enumerate(self.tasks)}
        of = np.array([index[row.task] for row in rows], dtype=np.intp)
        counts = np.bincount(of, minlength=len(self.tasks)).astype(np.float64)
        sums = np.bincount(of, weights=rewards, minlength=len(self.tasks))
        return np.divide(sums, counts, out=np.full(len(self.tasks), np.nan), where=counts > 0), counts
