"""Slots of requests with mixes of their own, and what merged models earn on them: levers, and what a mix is worth."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tanbr.lab.answers import Answers
from tanbr.lab.tasks.traffic import SlotRequests
from tanbr.tasks.answering import by_posterior
from tanbr.tasks.metrics import LabelSpace
from tanbr.types import Blend, FloatArray

WAYS = ("labels", "posterior")  # a head's best label, or weighed by the monitor's posterior


def earned(
    answers: Answers,
    slot: SlotRequests,
    blends: Sequence[Blend],
    of: NDArray[np.intp],
    *,
    posteriors: FloatArray,
    space: LabelSpace,
) -> list[float]:
    """Give a slot's mean reward by each of WAYS, request i answered with blends[of[i]], posteriors (n, V) of each."""
    given = answers.each(blends, of, slot.texts)
    both = (given, by_posterior(space, given, posteriors))
    return [round(float(space.rewards(slot.rows, space.read(slot.rows, one)).mean()), 5) for one in both]


def task_numbers(slot: SlotRequests, space: LabelSpace) -> NDArray[np.intp]:
    """Give the true task of every request (n,)."""
    names = [task.name for task in space.tasks]
    return np.array([names.index(row.task) for row in slot.rows], dtype=np.intp)


def active_tasks(mix: FloatArray) -> float:
    """How many tasks a mix (V,) holds, were they of equal shares: 1 / Σψ²."""
    return float(1 / (mix @ mix))
