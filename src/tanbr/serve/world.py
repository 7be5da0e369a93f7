"""The served world: what a turn of the loop asks of the engine, the store and what was answered."""

import hashlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tanbr.loop.guard import Probes
from tanbr.loop.learner import Learner
from tanbr.loop.practice import Logged, decides
from tanbr.loop.rewards import Given, Tally
from tanbr.loop.slot import Choice, Reason, Slot, Turn
from tanbr.monitor.recogniser import by_mix
from tanbr.serve.answer_log import AnswerLog
from tanbr.serve.config import ServeConfig
from tanbr.serve.engine import Engine
from tanbr.serve.journal import read_practice, read_slot, write_turn
from tanbr.serve.overview import View, practice_view, view_of
from tanbr.serve.panel import Assignment, Staged
from tanbr.serve.records import Alarm, Observer
from tanbr.serve.store import Store
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row
from tanbr.types import Blend, SlotRecord, TaskMix, Text

NEUTRAL: Text = "a"  # asked when there are no probes: even this must not be answered with NaN
ALARMS = 50  # kept for operators


class Laps:
    """What the parts of a turn take the learner's thread: seconds by the clock, and of the processor."""

    def __init__(self) -> None:
        self.parts: dict[str, tuple[float, float]] = {}
        self._at = time.perf_counter(), time.thread_time()

    def __call__(self, part: str) -> None:
        """Count the time since the last lap for a part."""
        now, (clock, processor) = (time.perf_counter(), time.thread_time()), self.parts.get(part, (0.0, 0.0))
        self.parts[part] = clock + now[0] - self._at[0], processor + now[1] - self._at[1]
        self._at = now


class Alarms:
    """What operators should know; any thread may add to it."""

    def __init__(self, observer: Observer) -> None:
        self.observer, self._lock = observer, threading.Lock()
        self._alarms: deque[Alarm] = deque(maxlen=ALARMS)
        self.slot = -1  # that is open

    def __call__(self, text: str) -> None:
        """Tell operators; what repeats is told once."""
        with self._lock:
            repeated = bool(self._alarms) and self._alarms[0].text == text
            if repeated:
                self._alarms.popleft()
            self._alarms.appendleft(Alarm(time.time(), self.slot, text))
        if not repeated:
            self.observer.alarm(text)

    @property
    def newest(self) -> tuple[Alarm, ...]:
        """All that are kept, newest first."""
        with self._lock:
            return tuple(self._alarms)


class ServedWorld:
    """Engine, store and answers, as the loop sees them; one thread at a time."""

    view: View  # of the learner that was written down or resumed last

    def __init__(
        self,
        engine: Engine,
        store: Store,
        answers: AnswerLog,
        *,
        config: ServeConfig,
        space: LabelSpace | None,
        probes: Sequence[Row],
        alarm: Alarms,
    ) -> None:
        """Probe new blends with labelled rows, where the model's head has their labels (`space`)."""
        self.engine, self.store, self.answers, self.config, self.alarm = engine, store, answers, config, alarm
        self._observer, self._space = alarm.observer, space
        self.last_reward, self.rewards, self.texts = store.last_seq, store.feedback, answers.texts_of
        self._last: tuple[SlotRecord | None, dict[str, float]] = None, {}  # last slot told, shares of its sources
        self._kept = read_practice(store)
        self._drifting = False
        self._probes = list(probes) if space is not None else []
        names = [] if space is None else [task.name for task in space.tasks]
        self._of = np.array([names.index(row.task) for row in self._probes], dtype=np.intp)  # (n,)
        self._digest = hashlib.sha256(repr([(row.task, row.text) for row in self._probes]).encode()).hexdigest()[:16]
        self._staged: list[Staged] = []
        self.laps = Laps()  # of the turn that is on its way

    def logged(self, rows: Sequence[Given], mix: TaskMix) -> list[Logged]:
        """Look up requests to practise on: those whose texts are at hand, and whose right answers are known."""
        space, learner = self._space, self.view.learner
        if space is None:
            return []
        found, recent = [], self.answers.recent([row.id for row in rows])
        blends = {slot.number: slot.blends for slot in (*learner.settling, learner.slot)}
        for row in rows:
            batch, at = recent.get(row.id, (None, 0))
            if batch is None or batch.logits is None or row.posterior is None or not row.counts:
                continue
            posterior = by_mix(row.posterior[None], mix)[0]
            task = int(posterior.argmax()) if row.task is None else row.task
            if decides(space.tasks[task], row.reward, row.label):
                text, served = batch.texts[at], blends.get(row.slot, ())
                answer = float(space.read([Row(space.tasks[task].name, text, 0.0)], batch.logits[at][None])[0])
                blend = served[row.place] if row.place < len(served) else None
                found.append(Logged(row.id, text, task, posterior, row.reward, answer, row.label, blend))
        return found

    def measured(self, slot: int) -> dict[int, Tally]:  # noqa: ARG002
        """Nothing: all that counts here comes from clients."""
        return {}

    def ended(self, number: int) -> Slot | None:
        """Find a slot that the router was told already; None if its blend can no longer be told."""
        found = self.store.slots(before=number + 1, limit=1)
        if not found or found[0]["slot"] != number or found[0]["reason"] == Reason.GONE:
            return None
        return read_slot(found[0], experts=self.engine.moe.num_experts, tasks=self.answers.tasks)

    # --- what answers -----------------------------------------------------------------------------------------------

    def answering(self, slot: Slot) -> Choice | None:
        """What would serve on what answers now; one that broke is not among it. None before the first slot."""
        models = [one for one in self.engine.panel.models if one.blend is not None]
        if not models or not slot.versions:
            return None
        if len(models) == 1 or models[0].slot != slot.number:  # a commit may have failed
            first = np.asarray(models[0].blend)
            return Choice.one(first, self.answers.tasks, Reason.KEPT, version=models[0].version)
        rows, versions = [one.place for one in models], tuple(one.version for one in models)
        blends = np.array([one.blend for one in models])
        return Choice(blends, slot.estimates[rows], Reason.KEPT, versions=versions)

    def prepare(self, blend: Blend, version: int | None) -> Staged:
        """Merge a blend (K,) into a free buffer."""
        self.laps("learn")
        self._staged.append(self.engine.prepare(blend, version=version))
        self.laps("merge")
        return self._staged[-1]

    def probe(self, prepared: Staged, *, fully: bool) -> Probes:
        """Ask a blend the probe texts, or only whether it answers with numbers."""
        if self._space is None or not self._probes or not fully:
            sane = self.engine.sane(NEUTRAL, prepared)
            self.laps("probe")
            return Probes(np.zeros(0) if sane else None, np.zeros(0, dtype=np.intp))
        logits = self.engine.logits([row.text for row in self._probes], live=prepared)
        self.laps("probe")
        rewards = None
        if np.isfinite(logits).all():
            rewards = self._space.rewards(self._probes, self._space.read(self._probes, logits))
        return Probes(rewards, self._of, self._digest)

    def discard(self) -> None:
        """Forget what was prepared."""
        self._staged.clear()
        self.engine.discard()

    # --- what is decided --------------------------------------------------------------------------------------------

    def write(self, turn: Turn, learner: Learner) -> None:
        """Write the turn down in one transaction that also names the router's and the monitor's new states."""
        self.laps("learn")
        self.engine.spread(*self._staged)
        view = view_of(learner, self._kept, alarm=self.alarm)
        practice = practice_view(learner, self._kept)
        write_turn(self.store, turn, learner, regret=view.regret, practice=practice)
        for told in turn.told:
            if not told.late:
                self._last = told.record, told.shares
                self._observer.slot(told.record)
        self.view = replace(view, last=self._last[0], shares=self._last[1])
        self._forget_told(learner)
        if turn.mix is not None:
            if turn.mix.alarm and not self._drifting:
                self.alarm(f"drift: {turn.mix.unknown:.0%} of the requests are unlike any known task")
            self._drifting = turn.mix.alarm
        self.laps("write")

    def _forget_told(self, learner: Learner) -> None:
        self.answers.forget(min((one.number for one in learner.settling), default=learner.slot.number) - 1)

    def commit(self, prepared: Sequence[Staged], learner: Learner) -> None:
        """Let what was prepared answer; requests go to its models by what the monitor knows now."""
        self._staged.clear()
        slot = learner.slot
        assignment = None
        if len(slot.versions) > 1 or self.config.answers == "posterior":
            monitor: Any = learner.monitor
            assignment = Assignment(slot.panel, monitor.snapshot())
        self.engine.commit(*prepared, slot=slot.number, assignment=assignment)
        self.engine.forget([one.number for one in learner.versions if not one.good])
        for one in prepared:
            if one.changed:
                self._observer.merged(self.engine.merge_seconds, one.version)

    def resume(self, learner: Learner) -> Learner:
        """Serve on what the open slot of a saved state served."""
        slot = learner.slot
        self._forget_told(learner)
        for model in self.store.slots(limit=1)[0]["models"]:
            self.answers.held[slot.number, model["place"]] = model["requests"]
        self.view = view_of(learner, self._kept, alarm=self.alarm)
        if len(slot.versions) <= self.engine.models:
            blends = zip(slot.blends, slot.versions, strict=True)
            self.commit([self.prepare(blend, version) for blend, version in blends], learner)
        return learner
