"""The learner: monitor, router, guard and store. It turns the slots, and nobody else touches router, monitor or swaps.

Whatever fails in a turn, what answers goes on answering: router and monitor go back to what they were before it, a slot
is opened without them (or the old one goes on, if not even that can be written down), and an alarm says why.
"""

import copy
import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from tanbr.errors import StateError
from tanbr.monitor import Monitor
from tanbr.serve.admission import Choice
from tanbr.serve.answer_log import AnswerLog
from tanbr.serve.choosing import Choosing, Pin
from tanbr.serve.clients import Clients
from tanbr.serve.config import ServeConfig
from tanbr.serve.engine import Engine
from tanbr.serve.guard import Guard
from tanbr.serve.ids import place_of
from tanbr.serve.journal import (
    OpenSlot,
    Place,
    Saves,
    Turn,
    count_requests,
    read_slot,
    state_file,
    tidy,
    write_turn,
)
from tanbr.serve.panel import Assignment, Staged
from tanbr.serve.preparing import Preparing
from tanbr.serve.records import Alarm, Observer, Reason
from tanbr.serve.rewards import share_out
from tanbr.serve.start_blend import StartBlend
from tanbr.serve.store import Store
from tanbr.serve.telling import Telling
from tanbr.serve.view import View, explained
from tanbr.types import FloatArray, Router, SlotRecord, TaskMix, Text

log = logging.getLogger("tanbr.serve")

ALARMS = 50  # kept for operators
FORGET_EVERY = 20  # slots
FIRM = 0.9  # posterior of a familiar text's task beyond which no label teaches the monitor otherwise


class Learner:
    """Follows the traffic, chooses blends and learns from rewards; all but `alarm` and the views in one thread."""

    def __init__(
        self,
        engine: Engine,
        *,
        router: Router,
        monitor: Monitor,
        start: StartBlend,
        guard: Guard,
        store: Store,
        answers: AnswerLog,
        config: ServeConfig,
        observer: Observer,
    ) -> None:
        self.engine, self.router, self.monitor = engine, router, monitor
        self.store, self.answers, self.guard = store, answers, guard
        self.config, self.observer = config, observer
        self.pin: Pin | None = None
        self.forecast: TaskMix = np.full(len(monitor.tasks), 1.0 / len(monitor.tasks))  # nothing seen yet: all alike
        self._choosing = Choosing(start, store, config, models=engine.models, confusion=lambda: self.monitor.confusion)
        self._preparing = Preparing(engine, guard, self._choosing, tries=config.guard.tries)
        self._telling = Telling(store, answers, config, experts=engine.moe.num_experts, tasks=len(monitor.tasks))
        self._view: View | None = None
        self._alarms: deque[Alarm] = deque(maxlen=ALARMS)
        self._alarm_lock = threading.Lock()
        self._seen = 0  # feedback that the guard has seen
        self._drifting = False

    @property
    def view(self) -> View:
        """What the learner is at."""
        if self._view is None:
            raise StateError("no slot is open yet")
        return self._view

    @property
    def current(self) -> OpenSlot:
        """The open slot."""
        return self.view.opened

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """What operators should know, newest first."""
        with self._alarm_lock:
            return tuple(self._alarms)

    def alarm(self, text: str) -> None:
        """Tell operators; what repeats is told once."""
        with self._alarm_lock:
            repeated = bool(self._alarms) and self._alarms[0].text == text
            if repeated:
                self._alarms.popleft()
            self._alarms.appendleft(Alarm(time.time(), -1 if self._view is None else self.current.slot, text))
        if not repeated:
            self.observer.alarm(text)

    # --- between turns ----------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Read what was answered, and show the guard the feedback on it."""
        try:
            self.answers.read(self.monitor, self.forecast, self._show)
        finally:  # what cannot be read must not blind the guard
            self._show_feedback()

    def _show_feedback(self) -> None:
        for row in self.store.feedback(after=self._seen):
            self._seen = row.seq
            if row.task is not None or not row.novel:
                share = share_out(row.task, row.posterior, self.forecast)
                model = row.slot, place_of(row.id, len(self.current.versions))
                self._show(model, self._telling.clients.trust(row.client) * share, row.reward, row.client)

    def read_safely(self) -> bool:
        """Read, and say so if that fails; whether it did not."""
        try:
            self.read()
        except Exception as error:  # the disk, the monitor, a shadow: the slots must turn all the same
            self.alarm(f"what was answered cannot be read: {type(error).__name__}: {error}")
            return False
        return True

    def judge(self) -> tuple[int, str] | None:
        """Name a version that the guard wants rolled back, and why; none while an operator has chosen."""
        return None if self.pin is not None else self.guard.judge(self._telling.clients)

    def _show(self, model: Place, share: FloatArray, reward: float, client: str = "") -> None:
        slot, place = model
        if slot == self.current.slot:
            self.guard.see(self.current.versions[place], share, reward, client)

    # --- the turn of a slot -----------------------------------------------------------------------------------------

    def turn(self, forced: Choice | None = None, *, bad: tuple[int, ...] = (), worthless: bool = False) -> bool:
        """End the slot and open the next; whether a next one was opened.

        `forced` is served instead of asking the router. What is told of a slot with `bad` versions is told at once,
        with zeros for these if they were worthless.
        """
        self.read_safely()
        before = copy.deepcopy((self.router, self.monitor, self._telling.clients)), self.forecast
        kept, turn = self.kept(), self._new_turn(self.current, bad=bad)
        try:
            turn.mark = self.store.last_seq()
            turn.requests = self.answers.uncounted()
            self._teach_monitor(turn)
            turn.mix = self.monitor.close_slot()
            self.forecast = turn.mix.forecast
            staged, opened = self._next(turn, forced, kept, worthless=worthless)
            self.engine.spread(*staged)
            self._write(turn, opened)
        except Exception as error:  # the disk, most likely: the slot goes on, with all it held, until it can be written
            (self.router, self.monitor, self._telling.clients), self.forecast = before
            self.alarm(f"slot {self.current.slot} goes on: {type(error).__name__}: {error}")
            return False
        failed = self._commit(staged, opened)
        self._opened(turn, opened)  # whoever sees the slot is answered in it
        return self._committed(staged, kept, failed)

    def kept(self) -> Choice | None:
        """What would serve on what answers now; None before the first slot."""
        models = [one for one in self.engine.lineup.models if one.blend is not None]
        if not models or self._view is None:
            return None
        rows, opened = [one.place for one in models], self.current
        estimates = opened.estimates
        if len(models) == 1 or estimates is None or models[0].slot != opened.slot:  # a commit may have failed
            return Choice.one(np.asarray(models[0].blend), Reason.KEPT, version=models[0].version)
        versions, blends = tuple(one.version for one in models), np.array([one.blend for one in models])
        return Choice(blends, Reason.KEPT, versions=versions, estimates=estimates[rows])

    def _next(
        self, turn: Turn, forced: Choice | None, kept: Choice | None, *, worthless: bool
    ) -> tuple[list[Staged], OpenSlot]:
        """Tell, choose and prepare; if that fails, go on with what answers and tell nothing."""
        before = copy.deepcopy((self.router, self._telling.clients))
        try:
            self._telling.tell(turn, self.router, worthless=worthless)
        except Exception as error:  # a router that fails must not keep a bad blend answering
            stays = self._untell(turn, before, kept, error)
            forced = forced or stays
        try:
            choice = forced or self._choosing.choose(turn, self.router, self.forecast, kept, self.pin)
            return self._preparing.prepare(turn, choice, kept, self.router, self.forecast)
        except Exception as error:
            stays = self._untell(turn, before, kept, error)
            return self._preparing.prepare(turn, stays, kept, self.router, self.forecast)

    def _untell(self, turn: Turn, before: tuple[Router, Clients], kept: Choice | None, error: Exception) -> Choice:
        """Put the router back to what it was before it was told, to be told again with the next turn; what stays."""
        self.router, self._telling.clients = copy.deepcopy(before)
        turn.told, turn.mark, turn.rewarded = [], self._telling.mark, self._telling.rewarded
        said = f"{type(error).__name__}: {error}"
        version = self.engine.version if kept is None else _listed(kept.versions)
        self.alarm(f"slot {self.current.slot}: {said}; merge version {version} stays")
        if kept is None:
            raise error
        return replace(kept, reason=Reason.FAILED, note=f"failed: {said}")

    def _write(self, turn: Turn, opened: OpenSlot) -> None:
        """Write the turn down, before anything of it shows."""
        turn.meta = {
            "guard": self.guard.remembered(),
            "clients": json.dumps(self._telling.clients.evidence),
            "led": json.dumps(self._telling.clients.led),
            "rewarded": turn.rewarded,
        }
        states: dict[str, Saves] = {"monitor": self.monitor, "router": self.router}
        ended = turn.ended
        places = () if ended is None else range(len(ended.versions))
        measured = [] if ended is None else [self.answers.tally(ended.slot, place) for place in places]
        keep = self.config.keep_versions * self.engine.models
        try:
            write_turn(self.store, turn, opened, states=states, measured=measured, keep_versions=keep)
        except BaseException:
            self.engine.discard()
            raise

    def _opened(self, turn: Turn, opened: OpenSlot) -> None:
        """Remember what was written down."""
        last, shares = (None, {}) if self._view is None else (self._view.last, self._view.shares)
        if turn.mix is not None:
            if turn.mix.alarm and not self._drifting:
                self.alarm(f"drift: {turn.mix.unknown:.0%} of the requests are unlike any known task")
            self._drifting = turn.mix.alarm
        for told in turn.told:
            if not told.late:
                last, shares = told.record, told.shares
                self.observer.slot(told.record)
        self.answers.counted(turn.requests)
        self._telling.remember(turn)
        self.answers.forget(min(self._telling.settling, default=opened.slot) - 1)
        keep = self.config.keep_versions * self.engine.models
        self.guard.opened(opened.versions, bad=turn.bad, keep=keep)
        self._show_view(opened, last, shares)

    def _commit(self, staged: list[Staged], opened: OpenSlot) -> Exception | None:
        """Let it answer; a merge may fail even now."""
        try:
            self.engine.commit(*staged, slot=opened.slot, assignment=self._assignment(opened))
        except Exception as error:
            return error
        return None

    def _committed(self, staged: list[Staged], kept: Choice | None, error: Exception | None) -> bool:
        """Say what answers now; where a merge failed, what is whole gets a slot of its own."""
        if error is not None:
            versions = _listed([one.version for one in staged if one.changed])
            self.alarm(f"merge version {versions} cannot be served: {type(error).__name__}: {error}")
            if kept is None or not any(one.changed for one in staged):
                return False
            whole = self.engine.lineup.models[0]  # old or new
            blend = kept.blend if whole.blend is None else whole.blend
            return self.turn(Choice.one(blend, Reason.FAILED, f"failed: {error}", whole.version))
        for one in staged:
            if one.changed:
                self.observer.merged(self.engine.merge_seconds, one.version)
        if self.current.slot % FORGET_EVERY == 0:
            self.store.forget(slots=self.config.keep_slots, requests=self.config.keep_requests)
        return True

    def _assignment(self, opened: OpenSlot) -> Assignment | None:
        """Which requests of a slot go to which of its models, by what the monitor knows now."""
        if len(opened.versions) == 1 and self.config.answers != "posterior":
            return None
        return Assignment(opened.panel, self.monitor.snapshot())

    def _teach_monitor(self, turn: Turn) -> None:
        """Let the monitor learn from texts whose labels, and so tasks, have come since the last turn.

        Never against what it firmly believes. What it does not believe itself, it takes from a client that leads (or is
        nobody in particular), or from several clients that say the same of a text.
        """
        if not self.monitor.learns:
            return
        clients, rows = self._telling.clients, self.store.feedback(after=self._telling.mark, upto=turn.mark)
        rows = [row for row in rows if row.source == "labels" and clients.trust(row.client) > 0.5]
        texts = self.answers.texts_of([row.id for row in rows])
        rows = [row for row in rows if row.id in texts]
        claims: dict[tuple[Text, int | None], set[str]] = {}
        for row in rows:
            claims.setdefault((texts[row.id], row.task), set()).add(row.client)
        fair = clients.fair(rows, self.config.rewards.taught_labels)
        seen = self.monitor.snapshot().recognise([texts[row.id] for row in fair])
        best, known = seen.posteriors.argmax(axis=1), ~seen.novel & seen.informed
        firm = known & (seen.posteriors.max(axis=1, initial=0.0) > FIRM)
        taught = []
        for row, task, is_known, is_firm in zip(fair, best, known, firm, strict=True):
            believed = not row.client or clients.leads(row.client) or len(claims[texts[row.id], row.task]) > 1
            if (is_known and row.task == task) or (believed and not is_firm):
                taught.append(row)
        names = [self.monitor.tasks[row.task] for row in taught if row.task is not None]
        self.monitor.learn([texts[row.id] for row in taught], names)

    def _show_view(self, opened: OpenSlot, last: SlotRecord | None, shares: dict[str, float]) -> None:
        """Take a picture of the learner for those who ask."""
        view = View(opened, self._choosing.phase(self._new_turn(opened), self.pin), self.pin is not None, last, shares)
        try:
            self._view = explained(view, self.router)
        except Exception as error:  # a router that cannot explain itself may serve all the same
            self._view = view
            self.alarm(f"the router does not explain itself: {type(error).__name__}: {error}")

    def _new_turn(self, ended: OpenSlot | None, *, bad: tuple[int, ...] = ()) -> Turn:
        regret = math.nan if self._view is None else self._view.regret
        return Turn(ended, self._telling.mark, regret=regret, rewarded=self._telling.rewarded, bad=bad)

    # --- what an operator wants, and what is on disk ------------------------------------------------------------------

    def set_pin(self, pin: Pin | None) -> None:
        """Keep an operator's wish; it holds over restarts."""
        kept = None if pin is None else json.dumps({"blend": pin.blend.tolist(), "version": pin.version})
        self.store.set_meta("pinned", kept)
        self.pin = pin
        view = self.view
        self._view = replace(view, pinned=pin is not None, phase=self._choosing.phase(self._new_turn(view.opened), pin))

    def first(self) -> None:
        """Open the first slot of a new state, or of one that was adopted."""
        self._telling.mark = self._seen = self.store.last_seq()
        turn = replace(self._new_turn(None), first=self.store.next_slot)
        choice = self._choosing.choose(turn, self.router, self.forecast, None, self.pin)
        staged, opened = self._preparing.prepare(turn, choice, None, self.router, self.forecast)
        self._write(turn, opened)
        self._opened(turn, opened)
        self.engine.commit(*staged, slot=opened.slot, assignment=self._assignment(opened))

    def resume(self, rows: list[dict[str, Any]]) -> None:
        """Go on with the slots that the router was not told of; the newest of them is open."""
        *ended, newest = rows
        opened = read_slot(
            newest, experts=self.engine.moe.num_experts, tasks=len(self.forecast), decisions=self.router.open
        )
        self.forecast = opened.task_mix
        try:
            self._telling.resume(ended, self.router)
            self._seen = self.store.last_seq()
            pinned = json.loads(self.store.meta("pinned") or "null")
            self.pin = None if pinned is None else Pin(np.array(pinned["blend"], dtype=float), int(pinned["version"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StateError(f"{self.store.folder} is damaged ({error}); restore it from a copy") from None
        self.guard.remember(self.store.meta("guard"), version=opened.merge_version)
        self.answers.resume(opened.slot, self.store.count_requests(opened.slot, len(opened.versions)))
        tidy(self.store)
        self._show_view(opened, None, {})
        fits = len(opened.versions) <= self.engine.models
        blends = list(zip(opened.blends, opened.versions, strict=True)) if fits else []
        staged = [self.engine.prepare(blend, version=version) for blend, version in blends]
        if staged:
            self.engine.commit(*staged, slot=opened.slot, assignment=self._assignment(opened))

    def save(self) -> None:
        """Save the monitor with the requests of the open slot in it, and what the guard has seen."""
        self.store.check_files()
        self.monitor.save(state_file(self.store, "monitor"))
        state_file(self.store, "monitor").chmod(0o600)
        more = {place: count for place, count in self.answers.uncounted().items() if place[0] != self.current.slot}
        with self.store.transaction(guard=self.guard.remembered()) as write:
            count_requests(write, more)
        self.answers.counted(more)


def _listed(versions: Iterable[int | None]) -> str:
    """Name versions."""
    return ", ".join(str(version) for version in versions if version is not None)
