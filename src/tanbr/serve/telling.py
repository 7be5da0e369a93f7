"""What the router is told: the rewards of slots when they are due, and what came late for those it was told."""

import json
from typing import Any

import numpy as np

from tanbr.serve.answer_log import AnswerLog
from tanbr.serve.clients import Clients
from tanbr.serve.config import ServeConfig
from tanbr.serve.journal import OpenSlot, SlotReward, Turn, read_slot
from tanbr.serve.rewards import VERDICT, Tally
from tanbr.serve.rows import Given
from tanbr.serve.store import Store
from tanbr.types import Router, TaskMix


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
            if due or (turn.bad is not None and number == ended.slot):
                tally = self._answers.tally(number).copy()
                rows = self._store.feedback(after=0, upto=turn.mark, slot=number)
                tally.add_feedback(rows, held, self.clients, learn=True)
                if worthless and number == ended.slot:
                    tally.add(VERDICT, np.zeros_like(held), self._config.guard.least_count * held)
                _settle(turn, router, opened, tally)
        late: dict[int, list[Given]] = {number: [] for number in self._answers.late()}
        for row in self._store.feedback(after=self.mark, upto=turn.mark):
            if row.slot not in waiting:
                late.setdefault(row.slot, []).append(row)
        for number, rows in late.items():
            found = self._store.slots(before=number + 1, limit=1)
            if found and found[0]["slot"] == number:
                tally = self._answers.late().get(number, Tally(self._tasks, self._config.rewards)).copy()
                held = found[0]["mix"] if found[0]["estimate"] is None else found[0]["estimate"]
                tally.add_feedback(rows, held, self.clients)
                _settle(turn, router, self._slot(found[0], told=True), tally, late=True)

    def remember(self, turn: Turn) -> None:
        """Remember a turn that was written down."""
        if turn.ended is not None and turn.mix is not None:
            self.settling[turn.ended.slot] = turn.ended, turn.mix.estimate
        for told in turn.told:
            if not told.late:
                self.settling.pop(told.opened.slot, None)
        self.mark, self.rewarded = turn.mark, turn.rewarded

    def resume(self, ended: list[dict[str, Any]]) -> None:
        """Go on with what is on disk, and with ended slots that the router was not told of."""
        self.settling = {row["slot"]: (self._slot(row), row["estimate"]) for row in ended}
        self.mark, self.rewarded = int(self._store.meta("mark") or 0), self._store.meta("rewarded")
        self.clients = Clients(self._config.rewards, json.loads(self._store.meta("clients") or "{}"))

    def _slot(self, row: dict[str, Any], *, told: bool = False) -> OpenSlot:
        return read_slot(row, experts=self._experts, tasks=self._tasks, told=told)


def _settle(turn: Turn, router: Router, opened: OpenSlot, tally: Tally, *, late: bool = False) -> None:
    """Tell the router the reward of a slot; a slot that it did not choose teaches it as a warm start."""
    reward, counts = tally.reward
    rewarded = bool((counts > 0).any())
    if opened.decision is not None:
        router.tell(opened.decision, reward, counts)
    elif rewarded:
        router.warm_start([opened.blend], [reward], [counts])
    if rewarded:
        turn.rewarded = turn.next
    turn.told.append(SlotReward(opened, reward, counts, late, tally.shares))
