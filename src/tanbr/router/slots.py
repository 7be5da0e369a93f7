"""Open and told slots as arrays: how a router's decisions are written into its state."""

from collections.abc import Iterable

import numpy as np

from tanbr.errors import StateError
from tanbr.router.records import Terms, Told
from tanbr.state import Arrays
from tanbr.types import Decision

COLUMNS = ("mix", "blend", "reward", "counts", "terms", "place")


def pack(told: Iterable[Told], open_: Iterable[tuple[Decision, Terms]], *, tasks: int) -> Arrays:
    """Name the arrays of told and then open slots; what is still to come is NaN."""
    unseen = np.full(tasks, np.nan)
    rows = list(told)
    count = len(rows)
    rows += [Told(decision, unseen, unseen, terms) for decision, terms in open_]
    terms = [[r.terms.mean, r.terms.granularity, r.terms.uncertainty] for r in rows]
    places = [[r.decision.id, r.terms.node, r.terms.depth, r.terms.candidates] for r in rows]
    return {
        "told": np.array(count),
        "slot.mix": np.array([r.decision.task_mix for r in rows]),
        "slot.blend": np.array([r.decision.blend for r in rows]),
        "slot.reward": np.array([r.reward for r in rows]),
        "slot.counts": np.array([r.counts for r in rows]),
        "slot.terms": np.array(terms, dtype=np.float64),
        "slot.place": np.array(places, dtype=np.int64),
    }


def unpack(arrays: Arrays, *, experts: int, tasks: int) -> tuple[list[Told], list[tuple[Decision, Terms]]]:
    """Give the told and the open slots that `pack` was given."""
    columns = [arrays[f"slot.{name}"] for name in COLUMNS]
    for column, name, width in zip(columns, COLUMNS, (tasks, experts, tasks, tasks, 3, 4), strict=True):
        if len(column) and column.shape != (len(columns[0]), width):
            raise StateError(f"'slot.{name}' must have {width} columns (got shape {column.shape})")
        column.setflags(write=False)
    rows = []
    for mix, blend, reward, counts, (mean, granularity, uncertainty), place in zip(*columns, strict=True):
        id_, node, depth, candidates = (int(value) for value in place)
        terms = Terms(float(mean), float(granularity), float(uncertainty), node, depth, candidates)
        rows.append(Told(Decision(id_, mix, blend), reward, counts, terms))
    told = int(arrays["told"])
    return rows[:told], [(row.decision, row.terms) for row in rows[told:]]
