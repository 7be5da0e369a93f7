"""The slot thread: turns the slots, and is the only one to touch router, monitor and swaps.

Whatever fails in a turn, what answers goes on answering: the router goes back to its saved state, a slot is opened
without it, and an alarm says why.
"""

import json
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
import torch

from tanbr.errors import InputError
from tanbr.router import TreeView
from tanbr.serve.config import ServeConfig
from tanbr.serve.engine import Staged
from tanbr.serve.gate import Admitted, Gate, Standing
from tanbr.serve.guard import Guard, Refused
from tanbr.serve.intake import Intake
from tanbr.serve.journal import Saves, Told, Turn, read_slot, write_turn
from tanbr.serve.loop import OpenSlot, SlotLoop
from tanbr.serve.messages import Broken, Message
from tanbr.serve.records import Alarm, Observer, ServiceError
from tanbr.serve.rewards import Tally, share_out
from tanbr.serve.store import Given, Store
from tanbr.types import Blend, FloatArray, SlotRecord, TaskMix

log = logging.getLogger("tanbr.serve")
Result = TypeVar("Result")

TICK = 0.2  # seconds between two looks at what was answered: seldom, as Python runs one thread at a time
PINNED = "pinned"
ALARMS = 50  # kept for operators
FORGET_EVERY = 20  # slots


class Keeper:
    """Turns slots; other threads give it what was answered, and ask it for things with `call`."""

    def __init__(
        self, loop: SlotLoop, store: Store, intake: Intake, guard: Guard, *, config: ServeConfig, observer: Observer
    ) -> None:
        self.current: OpenSlot | None = None
        self.pinned: tuple[Blend, int | None] | None = None
        self.last: SlotRecord | None = None  # last slot that was told
        self.shares: dict[str, float] = {}  # of the sources in it
        self.alarms: deque[Alarm] = deque(maxlen=ALARMS)
        self.answered = 0  # texts since the process started
        self.tree: TreeView | None = None
        self.regret = float("nan")
        self._loop, self._store, self._intake, self._guard = loop, store, intake, guard
        self._config, self._observer, self._gate = config, observer, Gate(config)
        self._started = time.time()  # of the open slot
        self._before = 0  # texts answered before the open slot
        self._settling: dict[int, tuple[OpenSlot, TaskMix]] = {}  # ended and untold slots, and the mixes they held
        self._mark = self._seen = 0  # feedback that the router's state may hold; that the guard has seen
        self._commands: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._drifting = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="tanbr-slots", daemon=True)

    # --- called by other threads ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run the slots."""
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """Read and save what was answered, and end; whether that was done in time."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def put(self, message: Message) -> None:
        """Take what a replica says: a batch that was answered, or that a version answers with NaN."""
        if isinstance(message, Broken):
            version = message.version
            self._commands.put((lambda: self._dismiss(version, "it answers with NaN", worthless=True), Future()))
            self._wake.set()
            return
        self._intake.put(message)
        self.answered += len(message.ids)
        limit = self._config.slot_requests
        if limit is not None and self.requests >= limit:
            self._wake.set()

    def call(self, command: Callable[[], Result]) -> Result:
        """Do something in the slot thread, between two of its own steps."""
        if self._stopping or not self._thread.is_alive():
            raise ServiceError("the server is stopping")
        future: Future[Result] = Future()
        self._commands.put((command, future))
        self._wake.set()
        return future.result()

    @property
    def requests(self) -> int:
        """Texts answered in the open slot."""
        return self.answered - self._before

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        torch.set_num_threads(1)  # merges, probes and shadows leave the other cores to the requests
        while not self._stopping:
            self._wake.wait(TICK)
            self._wake.clear()
            self._obey()
            self._outlive(self._read)
            self._outlive(self._judge)
            if self._due():
                self._turn(self._choose)
        self._obey()
        self._outlive(self._read)
        self._outlive(self._save_open_slot)

    def _obey(self) -> None:
        while not self._commands.empty():
            command, future = self._commands.get()
            try:
                future.set_result(command())
            except Exception as error:  # belongs to whoever asked
                future.set_exception(error)

    def _outlive(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # the thread must outlive whatever a disk or a model does
            self._alarm(f"{step.__name__.strip('_').replace('_', ' ')} failed: {type(error).__name__}: {error}")

    def _alarm(self, text: str) -> None:
        repeated = bool(self.alarms) and self.alarms[0].text == text
        if repeated:
            self.alarms.popleft()
        self.alarms.appendleft(Alarm(time.time(), -1 if self.current is None else self.current.slot, text))
        if not repeated:
            self._observer.alarm(text)

    def _due(self) -> bool:
        config = self._config
        if config.slot_requests is not None and self.requests >= config.slot_requests:
            return True
        if config.slot_seconds is None or time.time() - self._started < config.slot_seconds:
            return False
        if not self.requests:  # nobody came: the slot goes on
            self._started = time.time()
        return self.requests > 0

    def _read(self) -> None:
        """Read what was answered, and show the guard the feedback on it."""
        self._intake.read(self._loop.monitor, self._loop.forecast, self._show)
        for row in self._store.feedback(after=self._seen):
            self._seen = row.seq
            self._show(row.slot, share_out(row.task, row.posterior, self._loop.forecast), row.reward)

    def _judge(self) -> None:
        """Roll back if the guard says so."""
        reason = None if self.pinned is not None else self._guard.judge()
        if reason is not None:
            self._dismiss(self._loop.engine.version, reason)

    def _show(self, slot: int, share: FloatArray, reward: float) -> None:
        if self.current is not None and slot == self.current.slot:
            self._guard.see(share, reward)

    # --- turning a slot ---------------------------------------------------------------------------------------------

    def _turn(self, choose: Callable[[Turn], Admitted], *, bad: int | None = None) -> bool:
        """End the slot and open the next with what `choose` says; whether a next one was opened."""
        loop, slot = self._loop, self._loop.slot
        turn = Turn(self.current, self._mark, bad=bad, regret=self.regret)
        self._outlive(self._read)
        try:
            turn.mark = self._store.last_seq()
            turn.mix = loop.close()
            if turn.mix.alarm and not self._drifting:
                self._alarm(f"drift: {turn.mix.unknown:.0%} of the requests are unlike any known task")
            self._drifting = turn.mix.alarm
            self._open(choose(turn), turn)
        except Exception as error:  # router, monitor, disk or experts: say it and go on
            self._alarm(f"slot {slot}: {type(error).__name__}: {error}; merge version {loop.engine.version} stays")
            if not self._recover(turn, slot, error):
                return False
        self._before, self._started = self.answered, time.time()
        self._outlive(self._look_around)
        return True

    def _choose(self, turn: Turn) -> Admitted:
        """Tell what is due, ask, and let the gate look at the answer."""
        self._tell(turn)
        if self.pinned is not None:
            return self._instead(*self.pinned, PINNED)
        decision = self._loop.ask()
        known = [
            Standing(row["version"], row["blend"], row["sums"], row["counts"])
            for row in self._store.versions()
            if row["good"]
        ]
        now = next((version for version in known if version.version == self._loop.engine.version), None)
        if now is None:
            return Admitted(decision)
        admitted = self._gate.admit(decision, self._loop.router, now, known)
        if admitted.decision is None:  # never served: it teaches nothing
            self._loop.router.tell(decision, np.full(self._loop.tasks, np.nan))
        return admitted

    def _open(self, admitted: Admitted, turn: Turn) -> None:
        """Serve what was admitted. What the guard refuses is told to the router, which may choose again."""
        loop, before = self._loop, self._loop.engine.live

        def check(opened: OpenSlot, staged: Staged) -> None:
            if staged.changed:
                self._guard.inspect(staged, loop.forecast, forced=opened.decision is None)
            self._write(turn, opened)

        for chance in range(self._config.guard.tries, -1, -1):
            try:
                if admitted.instead is not None:
                    other = admitted.instead
                    version = None if other.version < 0 else other.version
                    opened = loop.open(None, blend=other.blend, version=version, note=admitted.note, before=check)
                else:
                    opened = loop.open(admitted.decision, before=check)
                break
            except Refused as refused:
                if admitted.decision is None or before.blend is None:
                    raise
                log.info("slot %d: a blend is not served: %s", loop.slot, refused)
                loop.router.tell(admitted.decision, refused.reward, refused.counts)
                if chance > 1:
                    admitted = Admitted(loop.ask())
                else:
                    admitted = self._instead(before.blend, before.version, f"refused: {refused}")
        self._opened(opened, turn)
        if opened.merge_version != before.version:
            self._observer.merged(loop.engine.merge_seconds, opened.merge_version)

    def _recover(self, turn: Turn, slot: int, error: Exception) -> bool:
        """Put the router back to what was saved, and open a slot with what answers, without asking it."""
        loop, live = self._loop, self._loop.engine.live
        try:
            saved, kind = self._store.meta("router"), type(loop.router)
            if saved is not None and hasattr(kind, "load"):
                loop.router = kind.load(self._store.folder / saved)
            if turn.mix is None or live.blend is None:
                return False
            turn.told, turn.mark, loop.slot = [], self._mark, slot + 1
            opened = loop.open(
                None,
                blend=live.blend,
                version=live.version,
                note=f"failed: {type(error).__name__}: {error}",
                before=lambda opened, _: self._write(turn, opened, router=False),
            )
        except Exception as second:  # the disk, most likely: the slot goes on until it can be written down
            log.warning("slot %d goes on: %s", slot, second)
            loop.slot = slot
            return False
        self._opened(opened, turn)
        return True

    def _opened(self, opened: OpenSlot, turn: Turn) -> None:
        same = self.current is not None and self.current.merge_version == opened.merge_version
        if turn.ended is not None and turn.mix is not None:
            self._settling[turn.ended.slot] = turn.ended, turn.mix.estimate
        for told in turn.told:
            if not told.late:
                self._settling.pop(told.opened.slot, None)
                self.last = told.record
                self._observer.slot(told.record)
        self._intake.forget(min(self._settling, default=opened.slot) - 1)
        self.current, self._mark = opened, turn.mark
        self._guard.opened(same=same, bad=turn.bad, keep=self._config.keep_versions)

    def _tell(self, turn: Turn) -> None:
        """Tell the router the slots that are due, and what came late for those it was told."""
        waiting = dict(self._settling)
        ended = -1
        if turn.ended is not None and turn.mix is not None:
            ended = turn.ended.slot
            waiting[ended] = turn.ended, turn.mix.estimate
        for number, (opened, mix) in sorted(waiting.items()):
            if ended - number >= self._config.rewards.settle_slots:
                self._settle(turn, opened, self._rewards(number, mix, turn.mark))
        late: dict[int, list[Given]] = {}
        for row in self._store.feedback(after=self._mark, upto=turn.mark):
            if row.slot not in waiting:
                late.setdefault(row.slot, []).append(row)
        for number, rows in late.items():
            found = self._store.slots(before=number + 1, limit=1)
            if found and found[0]["slot"] == number:
                tally = Tally(self._loop.tasks, self._config.rewards)
                tally.add_feedback(rows, found[0]["mix"] if found[0]["estimate"] is None else found[0]["estimate"])
                self._settle(turn, read_slot(found[0], told=True), tally, late=True)

    def _rewards(self, slot: int, mix: TaskMix, mark: int) -> Tally:
        tally = self._intake.tally(slot).copy()
        tally.add_feedback(self._store.feedback(after=0, upto=mark, slot=slot), mix)
        return tally

    def _settle(self, turn: Turn, opened: OpenSlot, tally: Tally, *, late: bool = False) -> None:
        reward, counts = tally.reward
        if opened.note != PINNED:  # an operator's choice is in the log, but the router does not learn from it
            self._loop.settle(opened, reward, counts)
        turn.told.append(Told(opened, reward, counts, late))
        if not late:
            self.shares = tally.shares

    # --- operators, and the guard -----------------------------------------------------------------------------------

    def end(self) -> int:
        """End the slot now; the number of the next."""
        if not self._turn(self._choose) or self.current is None:
            raise ServiceError(f"the slot goes on: {self.alarms[0].text}")
        return self.current.slot

    def pin(self, blend: Blend, version: int | None) -> int:
        """Serve a blend until `unpin`; its merge version."""
        number = self._force(blend, version, PINNED)
        self.pinned = blend, number
        self._store.set_meta(PINNED, json.dumps({"blend": blend.tolist(), "version": number}))
        return number

    def unpin(self) -> None:
        """Let the router choose again, from the next slot on."""
        self._store.set_meta(PINNED, None)
        self.pinned = None

    def rollback(self, version: int | None) -> int:
        """Serve an earlier version until the slot ends; the router hears that its choice was bad."""
        now = self._loop.engine.version
        rows = {row["version"]: row for row in self._store.versions()}
        wanted = self._last_good() if version is None else version
        if wanted is None:
            raise InputError("there is no earlier good version to roll back to")
        if wanted not in rows:
            raise InputError(f"merge version {wanted} is not kept; choose one of {', '.join(map(str, sorted(rows)))}")
        if wanted == now:
            raise InputError(f"merge version {wanted} is the one that answers; choose another")
        if self.pinned is not None:
            self.unpin()
        return self._force(rows[wanted]["blend"], wanted, f"rolled back by hand from {now}", bad=now, worthless=True)

    def _last_good(self) -> int | None:
        """The version to go back to: the one still in the spare buffer if it is good, or else the newest good one."""
        engine = self._loop.engine
        good = [row["version"] for row in self._store.versions() if row["good"] and row["version"] != engine.version]
        held = -1 if engine.held is None else engine.held.version
        return held if held in good else max(good, default=None)

    def _dismiss(self, bad: int, reason: str, *, worthless: bool = False) -> None:
        """Go back to the last good version at once, and tell the router what it did."""
        engine = self._loop.engine
        self._alarm(f"merge version {bad} is rolled back: {reason}")
        version = self._last_good() if engine.version == bad else engine.version
        blend = next((row["blend"] for row in self._store.versions() if row["version"] == version), None)
        if version is None or blend is None:
            self._alarm("there is no earlier good version to roll back to: the bad one goes on answering")
            self._guard.opened(same=False, bad=bad, keep=self._config.keep_versions)
            return
        self._force(blend, version, f"rolled back: {reason}", bad=bad, worthless=worthless)

    def _force(
        self, blend: Blend, version: int | None, note: str, *, bad: int | None = None, worthless: bool = False
    ) -> int:
        """Open a slot with a given blend. The router is told of a `bad` one at once, with zeros if it was worthless."""

        def choose(turn: Turn) -> Admitted:
            if bad is not None and turn.ended is not None and turn.ended.decision is not None:
                mix = self._loop.forecast
                tally = self._rewards(turn.ended.slot, mix, turn.mark)
                if worthless:
                    tally.add("feedback", np.zeros_like(mix), self._config.guard.least_count * mix)
                try:
                    self._settle(turn, turn.ended, tally)
                except Exception as error:  # a router that fails must not keep a bad blend answering
                    self._alarm(f"the router was not told: {type(error).__name__}: {error}")
            return self._instead(blend, version, note)

        done = self._turn(choose, bad=bad)
        live = self._loop.engine.live
        if not done or live.blend is None or not np.array_equal(live.blend, blend):
            raise ServiceError(f"merge version {live.version} goes on: {self.alarms[0].text}")
        return live.version

    def _instead(self, blend: Blend, version: int | None, note: str) -> Admitted:
        zeros = np.zeros(self._loop.tasks)
        return Admitted(None, Standing(-1 if version is None else version, blend, zeros, zeros), note)

    # --- what is on disk --------------------------------------------------------------------------------------------

    def first(self) -> None:
        """Open the very first slot."""
        self._open(Admitted(self._loop.ask()), Turn(None, 0))
        self._look_around()

    def resume(self, rows: list[dict[str, Any]]) -> None:
        """Go on with the slots that the router was not told of; the newest of them is open."""
        *ended, newest = rows
        self._settling = {row["slot"]: (read_slot(row), row["estimate"]) for row in ended}
        self.current = read_slot(newest)
        self._loop.forecast = newest["mix"]
        self._mark, self._seen = self._store.meta("mark") or 0, self._store.last_seq()
        pinned = json.loads(self._store.meta(PINNED) or "null")
        self.pinned = None if pinned is None else (np.array(pinned["blend"]), pinned["version"])
        self._look_around()

    def _write(self, turn: Turn, opened: OpenSlot, *, router: bool = True) -> None:
        monitor: Any = self._loop.monitor
        states: dict[str, Saves] = {"monitor": monitor} | ({"router": self._loop.router} if router else {})
        measured = None if turn.ended is None else self._intake.tally(turn.ended.slot)
        turn.requests = self.requests
        keep = self._config.keep_versions
        write_turn(self._store, turn, opened, states=states, measured=measured, keep_versions=keep)

    def _save_open_slot(self) -> None:
        """Save the monitor with the requests of the open slot in it."""
        monitor: Any = self._loop.monitor
        monitor.save(self._store.folder / self._store.meta("monitor"))

    def _look_around(self) -> None:
        """Take a picture of the router for those who ask, and forget what is too old."""
        router: Any = self._loop.router
        self.tree = getattr(router, "tree", None)
        self.regret = float("nan")
        decision = None if self.current is None else self.current.decision
        if self.tree is not None and decision is not None and hasattr(router, "explain"):
            values = self.tree.value @ decision.task_mix
            self.regret = max(0.0, float(np.max(values, initial=-np.inf)) - router.explain(decision).mean)
        if self._loop.slot % FORGET_EVERY == 0:
            self._store.forget(slots=self._config.keep_slots, requests=self._config.keep_requests)
