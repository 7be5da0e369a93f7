"""G blends chosen jointly: facility location over what requests are read as. One blend is a panel of one.

A request of task v is read as task u with chance C_vu. Of all requests m_u = Σ_v ψ_v C_vu are read as u, and of these
P_uv = ψ_v C_vu / m_u are of task v. Requests that are read alike go to the same model, so a panel is worth

    Σ_u m_u max_g Σ_v P_uv U_v(x_g)

That is monotone and submodular in the set of blends: greedy choice reaches 1 − 1/e of the best panel of candidates, and
exchanges only add. C = I, nothing misread, gives Σ_v ψ_v max_g U_v(x_g); G = 1 gives ψᵀU(x) whatever C is.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tanbr.router.simplex import Sizes, first_best, keep_largest
from tanbr.types import FloatArray, TaskMix, as_confusion

ROUNDS = 8  # most rounds of exchanges; two or three are usual
HALF = 0.3  # weight of a task's own expert at which about half of what it adds is there, in surveys of real blends
Rows = NDArray[np.intp]  # (G,) rows of the chosen candidates


@dataclass(frozen=True, eq=False)
class Readings:
    """A mix of tasks, as it is read."""

    task_mix: TaskMix  # (V,) ψ
    mix: TaskMix  # (V,) m, share of the requests read as each task
    tasks: FloatArray  # (V, V) P, what the requests read as a task are of

    @classmethod
    def of(cls, mix: TaskMix, confusion: ArrayLike | None = None) -> "Readings":
        """Read a mix (V,) of which `confusion` (V, V) tells how each task is read; rightly if None."""
        if confusion is None:
            return cls(mix, mix, np.eye(len(mix)))
        joint = mix[:, None] * as_confusion(confusion, tasks=len(mix))  # (of task, read as)
        read = joint.sum(axis=0)
        return cls(mix, read, np.where(read > 0, joint / np.maximum(read, 1e-300), np.eye(len(mix))).T)

    def bound(self, of_tasks: FloatArray) -> FloatArray:
        """Bounds of readings (…, V) from those of tasks (…, V)."""
        return np.asarray(of_tasks @ self.tasks.T)

    def received(self, models: FloatArray) -> FloatArray:
        """Mix of tasks (G, V) that each model receives, from the shares of readings (G, V) that go to it."""
        return np.asarray((models * self.mix) @ self.tasks)


def worth(bound: FloatArray, mix: TaskMix) -> float:
    """Σ_v ψ_v max_g U_v(x_g) of a panel's bounds (G, V)."""
    return float(bound.max(axis=0) @ mix)


def greedy(bound: FloatArray, mix: TaskMix, models: int) -> Rows:
    """Take the candidate that adds most, G times: (G,) rows of bounds (n, V)."""
    reached = np.full(bound.shape[1], -np.inf)
    rows = []
    for _ in range(models):
        rows.append(first_best(np.maximum(bound, reached) @ mix))
        reached = np.maximum(reached, bound[rows[-1]])
    return np.array(rows, dtype=np.intp)


def exchanged(bound: FloatArray, mix: TaskMix, rows: Rows) -> Rows:
    """Replace one blend after another by what adds most beside the others, while that adds anything."""
    rows = rows.copy()
    reached = worth(bound[rows], mix)
    for _ in range(ROUNDS):
        before = reached
        for place in range(len(rows)):
            others = np.delete(rows, place)
            rest = bound[others].max(axis=0, initial=-np.inf)
            trial = np.insert(others, place, first_best(np.maximum(bound, rest) @ mix))
            if worth(bound[trial], mix) > reached + 1e-9:
                rows, reached = trial, worth(bound[trial], mix)
        if reached <= before:
            break
    return rows


def chosen(bound: FloatArray, readings: Readings, models: int, *, start: Rows | None = None) -> Rows:
    """Find a panel among candidates with bounds (n, V): (G,) rows.

    By greedy choice and by what it may start from, each improved by exchanges; the better one.
    """
    bound, mix = readings.bound(bound), readings.mix
    found = exchanged(bound, mix, greedy(bound, mix, models))
    if start is None:
        return found
    other = exchanged(bound, mix, start)
    return found if worth(bound[found], mix) > worth(bound[other], mix) + 1e-9 else other


def group_mixes(estimates: FloatArray, readings: Readings) -> FloatArray:
    """Each model's own mix: that of the requests it is best for; the whole mix where there are none. (G, V)."""
    best = readings.bound(estimates).argmax(axis=0)
    own = readings.received(best == np.arange(len(estimates))[:, None])
    total = own.sum(axis=1, keepdims=True)
    return np.where(total > 0, own / np.maximum(total, 1e-300), readings.task_mix)


def rise(weight: FloatArray | float) -> FloatArray | float:
    """How much of what its own expert adds a task has when the expert has this weight: 0 at 0, 1 at 1, concave."""
    return weight * (1.0 + HALF) / (weight + HALF)


def task_groups(readings: Readings, models: int) -> NDArray[np.intp]:
    """Part the tasks into G groups before anything is told: (V,) the group of what is read as each task.

    Inside a group experts share a blend by the mix, and a task has most of what its expert adds at a small share.
    """
    read = readings.mix[:, None] * readings.tasks  # (read as, of task)
    members: list[list[int]] = [[] for _ in range(models)]

    def value(group: list[int]) -> float:
        share = read[group].sum(axis=0)
        total = float(share.sum())
        return float(share @ rise(share / total)) if total > 0 else 0.0

    labels = np.zeros(len(readings.mix), dtype=np.intp)
    for number, task in enumerate(np.argsort(-readings.mix, kind="stable").tolist()):
        gains = np.array([value([*group, task]) - value(group) for group in members])
        labels[task] = number if number < models else first_best(gains)
        members[labels[task]].append(task)
    return labels


def proportional_panel(
    readings: Readings, models: int, *, own: ArrayLike, groups: ArrayLike, sizes: Sizes
) -> tuple[FloatArray, NDArray[np.intp]]:
    """Give each group of tasks their own experts by the shares of the mix: blends (G, K), and each task's model (V,).

    `groups` (V,) counts where somebody measured for so many models which tasks lose least by sharing one.
    """
    home = np.asarray(groups, dtype=np.intp)
    if len(home) != sizes.tasks or home.max() + 1 != models:
        home = task_groups(readings, models)
    return proportional_blends(readings, home, models, own=own, sizes=sizes), home


def proportional_blends(
    readings: Readings, labels: NDArray[np.intp], models: int, *, own: ArrayLike, sizes: Sizes
) -> FloatArray:
    """Blend experts for each group by the shares of the tasks in the requests it receives: (G, K).

    `own` names each task's expert (V,), or says how likely each expert is to be it (V, K). A group whose tasks are not
    expected has them evenly, a group without tasks has all tasks by the mix.
    """
    likely = np.asarray(own)
    likely = np.eye(sizes.experts)[likely] if likely.ndim == 1 else likely
    inside = labels == np.arange(models)[:, None]
    inside[~inside.any(axis=1)] = True
    received = readings.received(inside)
    share = np.where(received.any(axis=1, keepdims=True), received, inside)
    return keep_largest(share / share.sum(axis=1, keepdims=True) @ likely, sizes.max_active)
