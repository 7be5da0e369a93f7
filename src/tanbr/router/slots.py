"""Open and told slots as arrays: how a router's decisions are written into its state.

A panel of G models takes G rows, a single blend one row of model −1.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tanbr.errors import StateError
from tanbr.router.records import Open, Terms, Told
from tanbr.state import Arrays
from tanbr.types import Decision, FloatArray, PanelDecision

COLUMNS = ("mix", "blend", "reward", "counts", "terms", "place", "estimate", "model", "account", "change")


def pack(told: Iterable[Told], open_: Iterable[Open], *, tasks: int) -> Arrays:
    """Name the arrays of told and then open slots; what is still to come is NaN."""
    done = [row for slot in told for row in _rows(slot.decision, slot.why, slot.reward, slot.counts)]
    unseen = np.full(tasks, np.nan)
    waiting = list(open_)
    rows = done + [row for slot in waiting for row in _rows(slot.decision, slot.why, unseen, unseen)]
    panels = [slot for slot in waiting if isinstance(slot.decision, PanelDecision)]
    read = [np.eye(tasks) if slot.confusion is None else slot.confusion for slot in panels]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    whole = ("place", "model")
    arrays = {
        f"slot.{name}": np.array(column, dtype=np.int64 if name in whole else np.float64)
        for name, column in zip(COLUMNS, columns, strict=True)
    }
    groups = [why.groups for slot in waiting for why in slot.why]  # of different lengths if a group was split between
    width = max(map(len, groups), default=0)
    padded = [[*own, *[np.nan] * (width - len(own))] for own in groups]
    only_open = {
        "open.confusion": np.array(read).reshape(-1, tasks, tasks),
        "open.groups": np.array(padded, dtype=np.float64).reshape(len(groups), width),
    }
    return {"told": np.array(len(done)), **only_open, **arrays}


def _rows(
    decision: Decision | PanelDecision, why: tuple[Terms, ...], reward: FloatArray, counts: FloatArray
) -> list[tuple[Any, ...]]:
    panel = isinstance(decision, PanelDecision)
    blends, tasks = Open(decision, why).blends, len(decision.task_mix)
    estimates = decision.estimates if isinstance(decision, PanelDecision) else np.full((1, tasks), np.nan)
    shape = (len(blends), tasks)
    return [
        (
            decision.task_mix, blend, r, c, (terms.mean, terms.granularity, terms.uncertainty),
            (decision.id, terms.node, terms.depth, terms.candidates), estimate, model if panel else -1,
            (terms.baseline, terms.least_gain, terms.balance),
            (terms.evidence, terms.suspect, terms.changes),
        )
        for model, (blend, r, c, terms, estimate) in enumerate(
            zip(blends, np.broadcast_to(reward, shape), np.broadcast_to(counts, shape), why, estimates, strict=True)
        )
    ]  # fmt: skip


def unpack(arrays: Arrays, *, experts: int, tasks: int) -> tuple[list[Told], list[Open]]:
    """Give the told and the open slots that `pack` was given."""
    size = len(arrays["slot.mix"])
    earlier = {  # what layouts 1 to 3 do not have
        "slot.estimate": np.full((size, tasks), np.nan), "slot.model": np.full(size, -1),
        "slot.account": np.zeros((size, 3)), "slot.change": np.tile([0.0, -1.0, 0.0], (size, 1)),
    }  # fmt: skip
    columns = [({**earlier, **arrays})[f"slot.{name}"] for name in COLUMNS]
    for column, name, width in zip(columns, COLUMNS, (tasks, experts, tasks, tasks, 3, 4, tasks, 0, 3, 3), strict=True):
        if column.shape != ((size, width) if size and width else (size,)):
            raise StateError(f"'slot.{name}' must have {width or 1} columns (got shape {column.shape})")
        column.setflags(write=False)
    models = columns[COLUMNS.index("model")]
    starts = np.flatnonzero(models <= 0)
    ends = [*starts[1:], size] if size else []
    slots = [_slot([c[a:b] for c in columns]) for a, b in zip(starts, ends, strict=True)]
    rows = np.array(ends)
    told = int(arrays["told"])
    count = int((rows <= told).sum())
    return slots[:count], _opened(slots[count:], arrays, tasks=tasks)


def _opened(slots: list[Told], arrays: Arrays, *, tasks: int) -> list[Open]:
    """Add to open slots what is kept of them alone, since layout 6."""
    panels, models = sum(isinstance(slot.decision, PanelDecision) for slot in slots), sum(len(s.why) for s in slots)
    read = arrays.get("open.confusion", np.tile(np.eye(tasks), (panels, 1, 1)))
    groups = arrays.get("open.groups", np.zeros((models, 0)))
    if read.shape != (panels, tasks, tasks) or groups.shape[:1] != (models,) or groups.ndim != 2:
        raise StateError(f"{panels} open panels of {models} models do not go with {read.shape} and {groups.shape}")
    of_panel, of_model = iter(read), (tuple(row[~np.isnan(row)].tolist()) for row in groups)
    return [
        Open(
            slot.decision,
            tuple(replace(why, groups=own) for why, own in zip(slot.why, of_model, strict=False)),
            next(of_panel) if isinstance(slot.decision, PanelDecision) else None,
        )
        for slot in slots
    ]


def _slot(columns: list[NDArray[Any]]) -> Told:
    mix, blend, reward, counts, terms, place, estimate, model, account, change = columns
    why = tuple(_terms(*row) for row in zip(terms, place, account, change, strict=True))
    if model[0] < 0:
        return Told(Decision(int(place[0, 0]), mix[0], blend[0]), reward[0], counts[0], why)
    if model.tolist() != list(range(len(model))):
        raise StateError(f"the models of a panel must be numbered from 0 (got {model.tolist()})")
    return Told(PanelDecision(int(place[0, 0]), mix[0], blend, estimate), reward, counts, why)


def _terms(bound: FloatArray, place: NDArray[np.int64], account: FloatArray, change: FloatArray) -> Terms:
    mean, granularity, uncertainty = (float(value) for value in bound)
    _, node, depth, candidates = (int(value) for value in place)
    baseline, least_gain, balance = (float(value) for value in account)
    return Terms(
        mean=mean, granularity=granularity, uncertainty=uncertainty, node=node, depth=depth, candidates=candidates,
        baseline=baseline, least_gain=least_gain, balance=balance,
        evidence=float(change[0]), suspect=int(change[1]), changes=int(change[2]),
    )  # fmt: skip
