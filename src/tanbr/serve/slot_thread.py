"""The learner's thread: it reads what was answered, obeys operators, and ends slots when they are due."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from tanbr.serve.learner import Learner
from tanbr.serve.messages import Broken, Message
from tanbr.serve.operator import Operator
from tanbr.serve.records import ServiceError

Result = TypeVar("Result")

TICK = 0.2  # seconds between two looks at what was answered: seldom, as Python runs one thread at a time
MOST_PAUSE = 60.0  # seconds; after a failure the next try waits twice as long as the last, up to this


class SlotThread:
    """Runs a learner; other threads give it what was answered, and ask it for things with `call`."""

    def __init__(self, learner: Learner, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.learner, self.operator = learner, Operator(learner)
        self._clock = clock
        self._config = learner.config
        self._target = self._config.slot_requests  # requests after which the open slot ends
        self._grown = False  # whether the last slot held more than it should
        self._started = clock()  # of the open slot
        self._pauses = {self._read: _Pause(), self._end: _Pause()}
        self._commands: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._ended = False  # whether nobody will do what is sent from now on; guarded by the lock
        self._wake = threading.Event()
        self._stopping = False
        self._fault = ""
        self.saved = True  # whether all that was learned is on disk: not while it runs
        self._thread = threading.Thread(target=self._watched, name="tanbr-slots", daemon=True)

    # --- called by other threads ------------------------------------------------------------------------------------

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

    def faults(self) -> tuple[str, ...]:
        """Say that the thread died, and of what; nothing if all is well."""
        return (self._fault,) if self._fault else ()

    @property
    def requests(self) -> int:
        """Requests answered in the open slot."""
        return self.learner.answers.held[self.learner.current.slot]

    def put(self, message: Message) -> None:
        """Take what a replica says: what it answered, or that a version answers with NaN and it went back."""
        if isinstance(message, Broken):
            version = message.version
            self._send(lambda: self.operator.dismiss(version, "it answers with NaN", worthless=True))
            return
        held = self.learner.answers.put(message)
        if self._target is not None and held >= self._target:
            self._wake.set()

    def call(self, command: Callable[[], Result]) -> Result:
        """Do something in this thread, between two of its own steps."""
        if self._stopping or not self._thread.is_alive():
            raise ServiceError(self._fault or "the server is stopping")
        return self._send(command).result()

    def _send(self, command: Callable[[], Result]) -> "Future[Result]":
        future: Future[Result] = Future()
        with self._sending:
            self._commands.put((command, future))
            if self._ended:
                self._refuse()
        self._wake.set()
        return future

    # --- the thread -------------------------------------------------------------------------------------------------

    def _watched(self) -> None:
        """Run; if the thread dies, say so and leave nobody waiting for it."""
        try:
            self._run()
        except BaseException as error:  # nobody else would ever hear of it
            self._fault = f"the slot thread died of {type(error).__name__}, and nothing is learned any more: restart"
            self.learner.alarm(self._fault)
        with self._sending:
            self._ended = True
            self._refuse()

    def _refuse(self) -> None:
        """Leave nobody waiting for a thread that has ended; the caller holds the lock."""
        while not self._commands.empty():
            self._commands.get()[1].set_exception(ServiceError(self._fault or "the server is stopping"))

    def _run(self) -> None:
        torch.set_num_threads(1)  # merges, probes and shadows leave the other cores to the requests
        while not self._stopping:
            self._wake.wait(TICK)
            self._wake.clear()
            self.step()
        self._obey()
        self._pauses.clear()
        self.saved = self._attempt(self._read) & self._attempt(self.learner.save)

    def step(self) -> None:
        """Look once: what others ask for, what was answered, and whether the slot is to end."""
        self._obey()
        self._attempt(self._read)
        self._attempt(self._judge)
        if self._due():
            self._attempt(self._end)

    def _obey(self) -> None:
        """Do what others ask for; a failure is theirs."""
        while not self._commands.empty():
            command, future = self._commands.get()
            slot = self.learner.current.slot
            try:
                future.set_result(command())
            except Exception as error:
                future.set_exception(error)
            if self.learner.current.slot != slot:
                self._started = self._clock()

    def _attempt(self, step: Callable[[], None]) -> bool:
        """Take a step that must not end the thread, whatever fails; what failed is not tried again too soon."""
        pause = self._pauses.get(step)
        if pause is not None and self._clock() < pause.until:
            return False
        try:
            step()
        except Exception as error:
            if not isinstance(error, _Failed):
                name = getattr(step, "__name__", "step").strip("_")
                self.learner.alarm(f"{name} failed: {type(error).__name__}: {error}")
            if pause is not None:
                pause.seconds = min(MOST_PAUSE, max(TICK, 2 * pause.seconds))
                pause.until = self._clock() + pause.seconds
            return False
        if pause is not None:
            pause.seconds = 0.0
        return True

    def _read(self) -> None:
        if not self.learner.read_safely():
            raise _Failed

    def _judge(self) -> None:
        """Roll back if the guard says so."""
        judged = self.learner.judge()
        if judged is not None:
            self.operator.dismiss(*judged)

    def _due(self) -> bool:
        if self._target is not None and self.requests >= self._target:
            return True
        seconds = self._config.slot_seconds
        if seconds is None or self._clock() - self._started < seconds:
            return False
        if not self.requests:  # nobody came: the slot goes on
            self._started = self._clock()
        return self.requests > 0

    def _end(self) -> None:
        """End the slot. What comes while it turns belongs to it; if that is more than a batch, the next is as long."""
        answers, slot, started = self.learner.answers, self.learner.current.slot, self._clock()
        before = answers.held[slot]
        if not self.learner.turn():
            raise _Failed
        held, self._started = answers.held[slot], self._clock()
        wanted = self._config.slot_requests
        if wanted is None:
            return
        came = held - before
        self._target = max(wanted, came)
        grown, self._grown = self._grown, held > wanted + self._config.batch
        if self._grown and not grown:
            self.learner.alarm(
                f"slots grow: slot {slot} held {held} requests instead of {wanted}, as they come faster than a slot is "
                f"turned ({self._started - started:.1f} s); what comes meanwhile belongs to it"
            )


class _Failed(Exception):  # noqa: N818
    """A step of the learner's failed, which has said why."""


class _Pause:
    """How long a step that failed rests."""

    seconds = 0.0
    until = 0.0
