"""Answers that use the posterior p(task | text): an answer in another task's words is repaired."""

from collections.abc import Sequence

import numpy as np
from scipy.special import log_softmax

from tanbr.tasks.metrics import Answer, LabelSpace
from tanbr.types import FloatArray

LEAST_CHANCE = 1e-3  # chance that a label's tasks keep, whatever the posterior says


def with_posterior(space: LabelSpace, logits: FloatArray, posteriors: FloatArray) -> FloatArray:
    """Weigh p(label | text) by the chance that the text is of a task with that label: logits (n, columns).

    `posteriors` are (n, V). Columns of graded tasks stay as they are.
    """
    has = np.array(
        [[label in task.labels for label in space.columns[: space.classes]] for task in space.tasks]
    )  # (V, C)
    chance = np.maximum(posteriors @ has, LEAST_CHANCE)
    adjusted = np.array(logits, dtype=np.float64)
    adjusted[:, : space.classes] = log_softmax(adjusted[:, : space.classes], axis=1) + np.log(chance)
    return adjusted


def by_posterior(space: LabelSpace, answers: Sequence[Answer], posteriors: FloatArray) -> list[Answer]:
    """Do so with the answers of a head; what a text-to-text model wrote stays."""
    if not answers or any(isinstance(answer, str) for answer in answers):
        return list(answers)
    return list(with_posterior(space, np.array(answers), posteriors))
