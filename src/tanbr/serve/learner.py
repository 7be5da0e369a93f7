"""The learner's thread: it holds the learner's value, reads what was answered, obeys operators, and turns slots.

Whatever fails in a turn, what answers goes on answering: the old value is kept, and an alarm says why.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from tanbr.errors import InputError
from tanbr.loop.choose import Pin
from tanbr.loop.learner import Learner, observe, practised
from tanbr.loop.practice import Exercise
from tanbr.loop.slot import Choice, Reason
from tanbr.loop.turn import turn
from tanbr.serve.config import step_back
from tanbr.serve.journal import pin_text, save, state_file
from tanbr.serve.panel import Broken, Message
from tanbr.serve.records import ServiceError
from tanbr.serve.world import Laps, ServedWorld
from tanbr.types import Blend, FloatArray

Result = TypeVar("Result")

PATIENCE = 0.5  # seconds that requests wait, at most, for a slot to turn
TICK = 0.2  # seconds between two looks at what was answered: seldom, as Python runs one thread at a time
FORGET_EVERY = 20  # slots between two looks for what the store need not keep
MOST_PAUSE = 60.0  # seconds; after a failure the next try waits twice as long as the last, up to this


class LearnerThread:
    """Turns slots; other threads give it what was answered, and come between two of its steps with `call`."""

    def __init__(self, world: ServedWorld, *, opened: Callable[[], None] = lambda: None) -> None:
        """Go on with the world's open slot; `opened` is called when requests need not wait for a turn any more."""
        self.world, self.view, self.alarms = world, world.view, world.alarm
        self._config, self._answers, self._store = world.config, world.answers, world.store
        self._clock, self._opened = time.monotonic, opened
        self.alarms.slot = self.learner.slot.number
        self._seen = self._store.last_seq()  # feedback that the guard has seen
        self._last = (-1, 0)  # the slot that ended last, and requests after which it did
        self._waits = (-1, 0.0)  # the slot that was full last, and until when requests wait for it to turn
        self._started = self._clock()  # of the open slot
        self._rests: dict[str, tuple[float, float]] = {}  # step → seconds that it rests if it failed, and until when
        self._broken: deque[int] = deque()  # versions that answer with NaN
        self._working = threading.RLock()  # to hold while the learner is changed
        self._ended = False  # whether the thread ran and does so no more
        self._wake = threading.Event()
        self._stopping = False
        self.faults: tuple[str, ...] = ()  # why the thread died
        self.saved = True  # whether all that was learned is on disk: not while it runs
        self._thread = threading.Thread(target=self._watched, name="tanbr-slots", daemon=True)

    # --- called by other threads ------------------------------------------------------------------------------------

    @property
    def learner(self) -> Learner:
        """The learner's value."""
        return self.view.learner

    def start(self) -> None:
        """Run the slots."""
        self.saved = False
        self._started = self._clock()
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """Read and save what was answered, and end; whether it ended in time."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def put(self, message: Message) -> None:
        """Take what a replica says: what it answered, or that a version answers with NaN and it went back."""
        if isinstance(message, Broken):
            self._broken.append(message.version)
            self._wake.set()
            return
        held, target = self._answers.put(message), self._target
        if target is not None and held >= target:
            self._wake.set()

    @property
    def _target(self) -> int | None:
        """Requests after which the open slot ends: fewer by those that the last one held too many, to a point."""
        wanted, (slot, target) = self._config.slot_requests, self._last
        if wanted is None:
            return None
        return wanted - min(max(0, self._answers.held_by(slot) - target), wanted // 4)

    def room(self, slot: int, at_work: int) -> tuple[float, bool]:
        """How many requests fit into a slot, beside those at work, and whether others wait until it has turned.

        A full slot takes a quarter of a slot more until it has turned, and any number after PATIENCE.
        """
        wanted, target = self._config.slot_requests, self._target
        if wanted is None or target is None or self._ended or slot != self.learner.slot.number:
            return math.inf, False
        taken = self._answers.held_by(slot) + at_work
        full = taken >= target
        if full and self._waits[0] != slot:
            self._waits = slot, self._clock() + PATIENCE
        if full and self._clock() >= self._waits[1]:
            return math.inf, False
        return target + wanted // 4 - taken, full

    def call(self, command: Callable[[], Result]) -> Result:
        """Do something between two of the thread's own steps; blocks until it is done."""
        with self._working:
            if self._stopping or not self._thread.is_alive():
                raise ServiceError(*self.faults or ["the server is stopping"])
            return command()

    # --- what operators, and the guard in their place, ask for: with `call`, or in the thread ------------------------

    def end_slot(self) -> int:
        """End the slot now; the number of the next."""
        if not self.turn():
            raise ServiceError(f"the slot goes on: {self.alarms.newest[0].text}")
        return self.learner.slot.number

    def pin(self, target: Blend | int) -> int:
        """Serve a blend (K,), or a version by its number, until `unpin`; its merge version."""
        blend, version = (self._blend_of(target), target) if isinstance(target, int) else (target, None)
        number = self._serve(Choice.one(blend, len(self.learner.forecast), Reason.PINNED, "pinned", version))
        self._set_pin(Pin(blend, number))
        return number

    def unpin(self) -> None:
        """Let the router choose again, from the next slot on."""
        self._set_pin(None)

    def roll_back(self, version: int | None) -> int:
        """Serve an earlier version alone until the slot ends; the router hears that the others were worthless."""
        now = tuple(one.version for one in self.world.engine.panel.models)
        good = [one.number for one in self.learner.good if one.number not in now]
        wanted = max(good, default=None) if version is None else version
        if wanted is None:
            raise InputError("there is no earlier good version to roll back to")
        blend = self._blend_of(wanted)
        if (wanted,) == now:
            raise InputError(f"merge version {wanted} is the one that answers; choose another")
        note = f"rolled back by hand from {', '.join(map(str, now))}"
        choice = Choice.one(blend, len(self.learner.forecast), Reason.ROLLED_BACK, note, wanted)
        number = self._serve(choice, bad=tuple(one for one in now if one != wanted), worthless=True)
        if self.learner.pin is not None:  # a pin that another version could not take over from holds
            self.unpin()
        return number

    def dismiss(self, version: int, why: str, *, worthless: bool = False) -> None:
        """Go back from a bad version at once, to the others of its panel or to the last good one; the router hears."""
        if version not in self.learner.slot.versions:
            return  # it went already: several workers may find the same version broken
        self.alarms(f"merge version {version} is rolled back: {why}")
        choice = self.learner.dismissing(version, why)
        if choice is None:
            self.alarms("there is no earlier good version to roll back to: the bad one goes on answering")
            keep = self.learner.rules.config.keep_versions
            guard = self.learner.guard.opened((version,), bad=(version,), keep=keep)
            self._show(replace(self.learner, guard=guard))
            return
        self._serve(choice, bad=(version,), worthless=worthless)

    def _serve(self, choice: Choice, *, bad: tuple[int, ...] = (), worthless: bool = False) -> int:
        done = self.turn(choice, bad=bad, worthless=worthless)
        models = self.world.engine.panel.models
        served = [one.blend.tobytes() for one in models if one.blend is not None]
        if not done or served != [blend.tobytes() for blend in choice.blends]:
            raise ServiceError(f"merge version {models[0].version} goes on: {self.alarms.newest[0].text}")
        return models[0].version

    def _blend_of(self, version: int) -> Blend:
        known = {one.number: one.blend for one in self.learner.versions}
        if version not in known:
            raise InputError(f"merge version {version} is not kept; choose one of {', '.join(map(str, sorted(known)))}")
        return known[version]

    def _set_pin(self, pin: Pin | None) -> None:
        self._store.set_meta("pinned", pin_text(pin))
        self._show(replace(self.learner, pin=pin))

    def practised(self, done: Exercise, earned: FloatArray) -> None:
        """Take in what the rows of an exercise have earned, and may have (2, n)."""
        self._show(practised(self.learner, done, earned))

    # --- the thread -------------------------------------------------------------------------------------------------

    def turn(self, forced: Choice | None = None, *, bad: tuple[int, ...] = (), worthless: bool = False) -> bool:
        """End the slot and open the next, as the loop does it; whether a next one was opened."""
        self.world.laps = laps = Laps()
        self.read()
        laps("read")
        old = self.learner
        try:
            learner = turn(old, self.world, forced=forced, bad=bad, worthless=worthless)
        except Exception as error:  # the disk, most likely: the slot goes on, with all it held, until it can be written
            self.alarms(f"slot {old.slot.number} goes on: {type(error).__name__}: {error}")
            self._waits = old.slot.number, -math.inf
            self._opened()
            return False
        self._last = old.slot.number, self._target or 0
        self.view, self.alarms.slot = self.world.view, learner.slot.number
        self._started = self._clock()
        self._opened()
        laps("swap")
        if learner.slot.number % FORGET_EVERY == 0:
            self._attempt("forget", self._forget)
        self.alarms.observer.turned(laps.parts)
        return True

    def _forget(self) -> None:
        self._store.forget(slots=self._config.keep_slots, requests=self._config.keep_requests)

    def _show(self, learner: Learner) -> None:
        self.view = replace(self.view, learner=learner)

    def read(self) -> bool:
        """Read what was answered, and show the guard the feedback on it; False if something failed, which it says."""
        monitor: Any = self.learner.monitor.fork()
        error: Exception | None
        try:
            error = self._answers.read(monitor)
            self._show(replace(self.learner, monitor=monitor))
        except Exception as raised:  # what cannot be read must not blind the guard
            error = raised
        try:
            given = self._store.feedback(after=self._seen)
            self._show(observe(self.learner, None, given))
            self._seen = max([self._seen, *(row.seq for row in given)])
        except Exception as raised:
            error = raised
        if error is not None:  # the disk, the monitor: the slots must turn all the same
            self.alarms(f"what was answered cannot be read: {type(error).__name__}: {error}")
        return error is None

    def save(self) -> None:
        """Save the monitor with the requests of the open slot in it, and what the guard has seen."""
        self._store.check_files()
        save(self.learner.monitor, state_file(self._store, "monitor"))
        self._store.set_meta("guard", self.learner.guard.to_json())

    def _watched(self) -> None:
        """Run; if the thread dies, say so and leave nobody waiting for it."""
        try:
            self._run()
        except BaseException as error:  # nobody else would ever hear of it
            self.faults = (f"the slot thread died of {type(error).__name__}, and nothing is learned any more: restart",)
            self.alarms(*self.faults)
        self._ended = True
        self._opened()

    def _run(self) -> None:
        torch.set_num_threads(1)  # merges and probes leave the other cores to the requests,
        step_back()  # and this one if need be
        while not self._stopping:
            self._wake.wait(TICK)
            self._wake.clear()
            self.step()
        with self._working:
            self._rests.clear()
            self.saved = self._attempt("read", self.read) & self._attempt("save", self.save)

    def step(self) -> None:
        """Look once: what was answered, whether it was good, and whether the slot is to end."""
        with self._working:
            self._attempt("read", self.read)
            self._attempt("judge", self._judge)
            if self._due():
                self._attempt("end", self.turn)

    def _attempt(self, name: str, step: Callable[[], bool | None]) -> bool:
        """Take a step that must not end the thread; what failed, or gave False, is not tried again too soon."""
        rest, until = self._rests.get(name, (0.0, -math.inf))
        if self._clock() < until:
            return False
        try:
            done = step() is not False
        except Exception as error:
            self.alarms(f"{name} failed: {type(error).__name__}: {error}")
            done = False
        rest = 0.0 if done else min(MOST_PAUSE, max(TICK, 2 * rest))
        self._rests[name] = rest, self._clock() + rest
        return done

    def _judge(self) -> None:
        while self._broken:
            self.dismiss(self._broken[0], "it answers with NaN", worthless=True)
            self._broken.popleft()
        judged = self.learner.judged()
        if judged is not None:
            self.dismiss(*judged)

    def _due(self) -> bool:
        requests, seconds = self._answers.held_by(self.learner.slot.number), self._config.slot_seconds
        target = self._target
        if target is not None and requests >= target:
            return True
        if seconds is None or self._clock() - self._started < seconds:
            return False
        if not requests:  # nobody came: the slot goes on
            self._started = self._clock()
        return requests > 0
