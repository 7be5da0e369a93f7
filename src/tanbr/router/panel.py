"""G blends chosen jointly: facility location over candidates, and what to start from before anything is told.

Every task goes to the model that is best for it, so a panel is worth Σ_v ψ_v max_g U_v(x_g). That is monotone and
submodular in the set of blends: greedy choice reaches 1 − 1/e of the best panel of candidates, and exchanges only add.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tanbr.router.argmax import first_best
from tanbr.router.kernel import rise
from tanbr.router.readings import Readings
from tanbr.router.simplex import keep_largest
from tanbr.router.sizes import Sizes
from tanbr.types import Blend, Counts, FloatArray, Reward, TaskMix, Terms

ROUNDS = 8  # most rounds of exchanges; two or three are usual
Rows = NDArray[np.intp]  # (G,) rows of the chosen candidates


@dataclass(frozen=True, eq=False)
class Candidates:
    """Blends that may be in a panel, and the terms of each task's bound at each."""

    blends: FloatArray  # (n, K)
    mean: FloatArray  # (n, V) predicted reward
    uncertainty: FloatArray  # (n, V)
    granularity: FloatArray  # (n,)
    node: NDArray[np.int64]  # (n,) name of the tree's node, -1 where it is none
    depth: NDArray[np.int64]  # (n,)

    @classmethod
    def of(cls, blends: FloatArray, mean: FloatArray, uncertainty: FloatArray) -> "Candidates":
        """Make candidates that are no nodes of a tree."""
        none = np.zeros(len(blends), dtype=np.int64)
        return cls(blends, mean, uncertainty, np.zeros(len(blends)), none - 1, none)

    @property
    def bound(self) -> FloatArray:
        """U_v(x): (n, V)."""
        return np.asarray(self.mean + self.uncertainty + self.granularity[:, None])

    def joined(self, other: "Candidates") -> "Candidates":
        """Put other candidates behind these."""
        return Candidates(**{name: np.concatenate([own, vars(other)[name]]) for name, own in vars(self).items()})


@dataclass(frozen=True, eq=False)
class Panel:
    """What a policy chose: G blends, what each task is taken to earn at each, and why."""

    blends: FloatArray  # (G, K)
    estimates: FloatArray  # (G, V)
    terms: tuple[Terms, ...]  # (G,)


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
    for _ in range(ROUNDS if len(rows) > 1 else 0):
        before = reached
        for place in range(len(rows)):
            others = np.delete(rows, place)
            best = first_best(np.maximum(bound, bound[others].max(axis=0)) @ mix)
            trial = np.insert(others, place, best)
            if worth(bound[trial], mix) > reached + 1e-9:
                rows, reached = trial, worth(bound[trial], mix)
        if reached <= before:
            break
    return rows


def chosen(candidates: Candidates, readings: Readings, models: int, *, start: Rows | None = None) -> Rows:
    """Find a panel: by greedy choice and by what it may start from, each improved by exchanges; the better one."""
    bound, mix = readings.bound(candidates.bound), readings.mix
    found = exchanged(bound, mix, greedy(bound, mix, models))
    if start is None:
        return found
    other = exchanged(bound, mix, start)
    return found if worth(bound[found], mix) > worth(bound[other], mix) + 1e-9 else other


def panel_of(candidates: Candidates, rows: Rows, readings: Readings) -> Panel:
    """Say of the chosen rows what the server and an operator need to know."""
    bound = candidates.bound[rows]
    mixes = group_mixes(bound, readings)
    terms = tuple(
        Terms(
            mean=float(candidates.mean[row] @ own), granularity=float(candidates.granularity[row]),
            uncertainty=float(candidates.uncertainty[row] @ own), node=int(candidates.node[row]),
            depth=int(candidates.depth[row]), candidates=len(candidates.blends),
        )
        for row, own in zip(rows, mixes, strict=True)
    )  # fmt: skip
    return Panel(candidates.blends[rows], bound, terms)


def group_mixes(estimates: FloatArray, readings: Readings) -> FloatArray:
    """Each model's own mix: that of the requests it is best for; the whole mix where there are none. (G, V)."""
    best = readings.bound(estimates).argmax(axis=0)
    own = readings.received(best == np.arange(len(estimates))[:, None])
    total = own.sum(axis=1, keepdims=True)
    return np.where(total > 0, own / np.maximum(total, 1e-300), readings.task_mix)


def task_groups(readings: Readings, models: int, *, interference: FloatArray | None = None) -> NDArray[np.intp]:
    """Part the tasks into G groups before anything is told: (V,) the group of what is read as each task.

    Inside a group experts share a blend by the mix. A task keeps most of what its expert adds at a small share
    already, and loses I_vw of it where task w's expert has the rest of the blend.
    """
    tasks = len(readings.mix)
    read = readings.mix[:, None] * readings.tasks  # (read as, of task)
    members: list[list[int]] = [[] for _ in range(models)]

    def value(group: list[int]) -> float:
        share = read[group].sum(axis=0)
        total = float(share.sum())
        if total <= 0:
            return 0.0
        lost = 0.0 if interference is None else float(share @ interference @ share) / total
        return float(share @ rise(share / total)) - lost

    labels = np.zeros(tasks, dtype=np.intp)
    for number, task in enumerate(np.argsort(-readings.mix, kind="stable").tolist()):
        gains = np.array([value([*group, task]) - value(group) for group in members])
        labels[task] = number if number < models else first_best(gains)
        members[labels[task]].append(task)
    for task in range(tasks if tasks <= 32 else 0):
        home = members[labels[task]]
        without = [other for other in home if other != task]
        stay = value(home) - value(without)
        gains = np.array([stay if group is home else value([*group, task]) - value(group) for group in members])
        if without and gains.max() > stay + 1e-9:
            members[labels[task]] = without
            labels[task] = first_best(gains)
            members[labels[task]].append(task)
    return labels


def proportional_blends(
    readings: Readings, labels: NDArray[np.intp], models: int, *, own: list[int], sizes: Sizes
) -> FloatArray:
    """Blend experts for each group by the shares of the tasks in the requests it receives: (G, K).

    A group whose tasks are not expected has them evenly, a group without tasks has all tasks by the mix.
    """
    blends = np.zeros((models, sizes.experts))
    inside = labels == np.arange(models)[:, None]
    inside[~inside.any(axis=1)] = True
    received = readings.received(inside)
    for blend, share, tasks in zip(blends, received, inside, strict=True):
        share = share if share.any() else tasks / tasks.sum()
        np.add.at(blend, own, share / share.sum())
    return keep_largest(blends, sizes.max_active)


class Learner(Protocol):
    """What learns from one blend's reward."""

    def learn(self, mix: TaskMix, blend: Blend, terms: Terms, reward: Reward, counts: Counts) -> None:
        """Learn what a slot's reward says."""
        ...


class ModelByModel:
    """Learns from a panel as from G slots, each with its model's own mix."""

    def learn_panel(self: Learner, readings: Readings, panel: Panel, rewards: FloatArray, counts: FloatArray) -> None:
        """Learn what the rewards of all models in a slot say, (G, V); 0 counts where unseen."""
        mixes = group_mixes(panel.estimates, readings)
        for row in zip(mixes, panel.blends, panel.terms, rewards, counts, strict=True):
            if row[-1].any():
                self.learn(*row)
