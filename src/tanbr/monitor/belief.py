"""Posteriors p(task | text) under what else is known: the mix that is expected, and what the client says."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tanbr.errors import InputError
from tanbr.types import FloatArray, TaskMix

LEAST_SHARE = 1e-3  # of a task in the mix: a forecast of 0 must not outvote a text that says otherwise


def by_mix(posteriors: FloatArray, mix: TaskMix) -> FloatArray:
    """Re-weight posteriors under a uniform prior (n, V) by the mix of the slot (V,), as Bayes does."""
    return _normalised(posteriors * np.maximum(mix, LEAST_SHARE), np.maximum(mix, LEAST_SHARE))


def possible_tasks(
    tasks: Sequence[str],
    labels_of: Sequence[Sequence[str]],  # (V,) each task's labels; none for a graded task
    *,
    task: str | None = None,
    labels: Sequence[str] | None = None,
) -> NDArray[np.bool_]:
    """Tell which tasks (V,) a request can be of whose client names its task, or the labels it wants to choose from.

    Of the tasks that have all of these labels; else of those that have one of them; else of any.
    """
    if task is not None:
        if task not in tasks:
            raise InputError(f"unknown task {task!r}; this monitor knows {', '.join(tasks)}")
        return np.array([name == task for name in tasks])
    wanted = set(labels or ())
    shared = np.array([len(wanted & set(own)) for own in labels_of])
    return shared == len(wanted) if (shared == len(wanted)).any() else shared >= min(1, int(shared.max()))


def restricted(posteriors: FloatArray, possible: NDArray[np.bool_]) -> FloatArray:
    """Restrict posteriors (n, V) to possible tasks, (V,) or (n, V); these alike where the text speaks for none."""
    return _normalised(posteriors * possible, possible.astype(np.float64))


def _normalised(weights: FloatArray, otherwise: FloatArray) -> FloatArray:
    """Divide rows by their sums; a row of 0 is taken from `otherwise`."""
    weights = np.where(weights.sum(axis=1, keepdims=True) > 0, weights, otherwise)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
