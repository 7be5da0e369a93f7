"""What the router is told: the rewards of slots when they are due, and what came late for those it was told."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tanbr.router.panel import Readings, group_mixes
from tanbr.serve.answer_log import AnswerLog
from tanbr.serve.clients import Clients
from tanbr.serve.config import ServeConfig
from tanbr.serve.ids import place_of
from tanbr.serve.journal import OpenSlot, SlotReward, Turn, read_slot
from tanbr.serve.rewards import VERDICT, Tally, shares_of
from tanbr.serve.rows import Given
from tanbr.serve.store import Store
from tanbr.types import Decision, FloatArray, Router, TaskMix


class Telling:
    """Keeps what the router has yet to be told. A turn is only remembered when it is on disk: `remember`."""

    def __init__(self, store: Store, answers: AnswerLog, config: ServeConfig, *, experts: int, tasks: int) -> None:
        self.clients = Clients(config.rewards)
        self.settling: dict[int, tuple[OpenSlot, TaskMix]] = {}  # ended and untold slots, and the mixes they held
        self.mark = 0  # feedback that the router's state may hold
        self.rewarded: int | None = None  # slot that was opened when the router was last told a reward
        self._store, self._answers, self._config = store, answers, config
        self._experts, self._tasks = experts, tasks

    def tell(self, turn: Turn, router: Router, *, worthless: bool) -> None:
        """Tell the slots that are due; one that ends with a bad version is, with zeros if that was worthless."""
        ended, mix = turn.ended, turn.mix
        assert ended is not None and mix is not None  # noqa: S101, PT018
        waiting = self.settling | {ended.slot: (ended, mix.estimate)}
        for number, (opened, held) in sorted(waiting.items()):
            due = ended.slot - number >= self._config.rewards.settle_slots
            if due or (turn.bad and number == ended.slot):
                rows = self._store.feedback(after=0, upto=turn.mark, slot=number)
                tallies = [self._answers.tally(number, place).copy() for place in range(len(opened.versions))]
                self._add(tallies, rows, held, learn=True)
                if worthless and number == ended.slot:
                    for version, mix_of, tally in zip(opened.versions, _mixes(opened, held), tallies, strict=True):
                        if version in turn.bad:
                            tally.add(VERDICT, np.zeros_like(held), self._config.guard.least_count * mix_of)
                _settle(turn, router, opened, tallies)
        late: dict[int, list[Given]] = {number: [] for number, _ in self._answers.late()}
        for row in self._store.feedback(after=self.mark, upto=turn.mark):
            if row.slot not in waiting:
                late.setdefault(row.slot, []).append(row)
        for number, rows in late.items():
            found = self._store.slots(before=number + 1, limit=1)
            if found and found[0]["slot"] == number:
                opened, measured = self._slot(found[0]), self._answers.late()
                none = Tally(self._tasks, self._config.rewards)
                tallies = [measured.get((number, place), none).copy() for place in range(len(opened.versions))]
                self._add(tallies, rows, found[0]["mix"] if found[0]["estimate"] is None else found[0]["estimate"])
                _settle(turn, router, opened, tallies, late=True)

    def _add(self, tallies: list[Tally], rows: list[Given], mix: TaskMix, *, learn: bool = False) -> None:
        """Add the feedback of one slot to the models that it is about; clients are compared model by model."""
        for place, tally in enumerate(tallies):
            mine = [row for row in rows if place_of(row.id, len(tallies)) == place]
            tally.add_feedback(mine, mix, self.clients, learn=learn)

    def remember(self, turn: Turn) -> None:
        """Remember a turn that was written down."""
        if turn.ended is not None and turn.mix is not None:
            self.settling[turn.ended.slot] = turn.ended, turn.mix.estimate
        for told in turn.told:
            if not told.late:
                self.settling.pop(told.opened.slot, None)
        self.mark, self.rewarded = turn.mark, turn.rewarded

    def resume(self, ended: list[dict[str, Any]], router: Router) -> None:
        """Go on with what is on disk, and with ended slots that the router was not told of."""
        self.settling = {row["slot"]: (self._slot(row, getattr(router, "open", ())), row["estimate"]) for row in ended}
        self.mark, self.rewarded = int(self._store.meta("mark") or 0), self._store.meta("rewarded")
        self.clients = Clients(self._config.rewards, json.loads(self._store.meta("clients") or "{}"))

    def _slot(self, row: dict[str, Any], decisions: Sequence[Decision] = ()) -> OpenSlot:
        return read_slot(row, experts=self._experts, tasks=self._tasks, decisions=decisions)


def rewards_for(decision: Decision, blends: FloatArray, values: FloatArray, *, unseen: float) -> FloatArray:
    """Put values (n, V) of the models that were served, blends (n, K), into the rows of a decision's own (G, V)."""
    if len(decision.blends) == len(values) == 1:
        return values
    table = np.full(decision.estimates.shape, unseen)
    for blend, value in zip(blends, values, strict=True):
        table[next(row for row, own in enumerate(decision.blends) if np.array_equal(own, blend))] = value
    return table


def _settle(turn: Turn, router: Router, opened: OpenSlot, tallies: Sequence[Tally], *, late: bool = False) -> None:
    """Tell the router the rewards of a slot's models; what it did not choose teaches it as a warm start."""
    rewards, counts = (np.array(table) for table in zip(*(tally.reward for tally in tallies), strict=True))  # (G, V)
    taught = (counts > 0).any(axis=1)
    warm_start = getattr(router, "warm_start", None)
    if opened.decision is not None:
        shown, behind = (
            rewards_for(opened.decision, opened.blends, table, unseen=unseen)
            for table, unseen in ((rewards, np.nan), (counts, 0.0))
        )
        router.tell(opened.decision, shown, behind)
    elif taught.any() and warm_start is not None:
        warm_start(opened.blends[taught], rewards[taught], counts[taught])
    if taught.any():
        turn.rewarded = turn.next
    turn.told.append(SlotReward(opened, rewards, counts, late, shares_of(tallies)))


def _mixes(opened: OpenSlot, mix: TaskMix) -> FloatArray:
    """The mix of each model's own tasks (G, V)."""
    return mix[None] if opened.estimates is None else group_mixes(opened.estimates, Readings.of(mix))
