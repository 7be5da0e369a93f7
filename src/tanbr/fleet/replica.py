"""A replica of a fleet: it answers requests by itself, follows the learner's orders, and leaves all else to it.

While no learner answers, it goes on as it was.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias

import numpy as np

from tanbr.errors import StateError, TanbrError
from tanbr.fleet.fleet import Order, Proposal, Reply, Report, Welcome
from tanbr.merge import Moe
from tanbr.serve.engine import Engine
from tanbr.serve.jobs import Job
from tanbr.serve.lineage import MadeFor, made_for
from tanbr.serve.panel import Message, Staged
from tanbr.serve.queue import Queue
from tanbr.serve.records import ServiceError, Stopping
from tanbr.serve.service import ANSWERING_SHARE, SWITCH_SECONDS

RETRY = 0.2  # seconds before a learner that did not answer is asked again
REST = 0.02  # least seconds between two reports
JOIN = 30.0  # seconds, at most, that a start waits for the learner to let it answer
Learner: TypeAlias = Callable[..., Any]  # `LearnerHost.call`, from afar; raises LearnerGone where there is none
KEPT = 5_000  # batches of answers that are kept while no learner takes them; the oldest go first


class LearnerGone(ServiceError):  # noqa: N818 - it will be back
    """No learner answers at the moment: it is being started again, or cannot be reached."""


class ReportBox:
    """What was answered: every message has a number, and is reported until the learner has taken it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: deque[Message] = deque(maxlen=KEPT)
        self._number = 0  # of the newest

    def put(self, message: Message) -> None:
        """Take a message; quick, never blocks."""
        with self._lock:
            self._messages.append(message)
            self._number += 1

    def untaken(self) -> tuple[int, tuple[Message, ...]]:
        """Give the newest message's number, and all that are not taken."""
        with self._lock:
            return self._number, tuple(self._messages)

    def taken(self, number: int) -> None:
        """Forget the messages up to a number: the learner has them."""
        with self._lock:
            while self._messages and self._number - len(self._messages) < number:
                self._messages.popleft()


class Link:
    """Reports to the learner and follows its orders, in a thread of its own."""

    def __init__(
        self,
        engine: Engine,
        learner: Learner,
        *,
        member: str,
        made_for: MadeFor,
        box: ReportBox,
        depth: Callable[[], int] = lambda: 0,
        renewed: Callable[[Welcome], None] = lambda welcome: None,  # noqa: ARG005
    ) -> None:
        """Report `depth`, the texts that wait; `renewed` hears the welcome of a learner that was started again."""
        self._engine, self._learner, self._member, self._made_for = engine, learner, member, made_for
        self._box, self._depth, self._renewed = box, depth, renewed
        self.at: int | None = None  # slot of the order that is followed
        self.answering = False
        self._prepared: tuple[Proposal, list[Staged]] | None = None
        self._tried = 0, ""  # number of the last proposal, and why it could not be made ready
        self._stopping = threading.Event()
        self.faults: tuple[str, ...] = ()  # why this replica cannot follow any more
        self._thread = threading.Thread(target=self._run, name="tanbr-link", daemon=True)

    def start(self, seconds: float) -> None:
        """Report and follow from now on; wait at most so many seconds until the learner lets this replica answer."""
        self._thread.start()
        ends = time.monotonic() + seconds
        while not self.answering and not self.faults and time.monotonic() < ends:
            self._stopping.wait(REST)

    def stop(self, timeout: float) -> bool:
        """Tell the learner the rest, and leave; whether it heard."""
        self._stopping.set()
        self.answering = False
        if self._thread.ident is not None:
            self._thread.join(timeout)
        try:
            self._learner("leave", self._report())
        except TanbrError:
            return False
        return not self._thread.is_alive()

    def step(self) -> None:
        """Report once, and do what the learner says."""
        report = self._report()
        reply: Reply = self._learner("ask", report)
        if not reply.known:
            self._greet()
            return
        self._box.taken(report.number)
        if reply.answer is False:
            self.answering = False
        if reply.order is not None:
            self.follow(reply.order)
        elif reply.proposal is not None:
            self._prepare(reply.proposal)
        if reply.answer:
            self.answering = True

    def follow(self, order: Order) -> None:
        """Let what was ordered answer; merged first, if it was not made ready."""
        if self._prepared is not None and _same(self._prepared[0], order):
            staged = self._prepared[1]
        else:
            self._engine.discard()
            staged = self._merged(order)
        self._prepared = None
        panel = self._engine.commit(*staged, slot=order.slot, assignment=order.assignment)
        versions = tuple(one.version for one in panel.models)
        if versions != order.versions:
            raise StateError(f"merge versions {versions} answer here instead of {order.versions}: restart this replica")
        self.at = order.slot

    def _prepare(self, proposal: Proposal) -> None:
        self._engine.discard()
        self._prepared, self._tried = None, (proposal.number, "")
        try:
            self._prepared = proposal, self._merged(proposal)
        except Exception as error:  # the files, the memory: what answers goes on, and the learner decides
            self._engine.discard()
            self._tried = proposal.number, f"{type(error).__name__}: {error}"

    def _merged(self, wanted: Order | Proposal) -> list[Staged]:
        pairs = zip(wanted.blends, wanted.versions, strict=True)
        return [self._engine.prepare(blend, version=version) for blend, version in pairs]

    def _greet(self) -> None:
        """Say hello to a learner that does not know this replica."""
        welcome: Welcome = self._learner("hello", Report(self._member, self.at, self.answering), self._made_for)
        if self.at is None or not 0 <= welcome.order.slot - self.at <= 1:
            self.answering = False
        self._renewed(welcome)
        self._prepared, self._tried = None, (0, "")  # its number was another learner's
        self._engine.discard()

    def _report(self) -> Report:
        number, messages = self._box.untaken()
        return Report(self._member, self.at, self.answering, self._tried, number, messages, self._depth())

    def _run(self) -> None:
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                self.step()
                self._stopping.wait(max(0.0, REST - (time.monotonic() - started)))
            except LearnerGone:
                self._stopping.wait(RETRY)
            except Exception as error:  # a merge that failed, another checkpoint: this replica cannot follow
                self.answering = False
                self.faults = (f"this replica follows no more: {type(error).__name__}: {error}",)
                return


def _same(proposal: Proposal, order: Order) -> bool:
    return proposal.versions == order.versions and np.array_equal(proposal.blends, order.blends)


def _by_learner(method: str) -> Any:
    """Make a method of `ReplicaService` that has the learner's service do it."""

    def call(self: "ReplicaService", *arguments: Any, **named: Any) -> Any:
        return self.learner(method, *arguments, **named)

    return call


class ReplicaService(Queue):
    """A queue that answers with what the learner orders; what else the web needs is as in `Service`."""

    feedback, state, slots = _by_learner("feedback"), _by_learner("state"), _by_learner("slots")
    versions, clients, metrics = _by_learner("versions"), _by_learner("clients"), _by_learner("metrics")
    pin, unpin = _by_learner("pin"), _by_learner("unpin")
    rollback, end_slot = _by_learner("rollback"), _by_learner("end_slot")

    def __init__(self, moe: Moe, learner: Learner, *, member: str, cpus: int = 1) -> None:
        """Ask the learner to join its fleet, and merge what answers there; not yet started.

        Raises StateError where the learner has another checkpoint, and LearnerGone where there is none.
        """
        mine = made_for(moe, ())
        welcome: Welcome = learner("hello", Report(member), mine)
        self.learner, self.info, self.client_secret = learner, welcome.info, welcome.secret
        workers, threads = welcome.config.workers or cpus, welcome.config.threads or 1
        config = welcome.config.model_copy(update={"workers": workers, "threads": threads})
        first, box = welcome.order, ReportBox()
        judged = welcome.info.precision if welcome.info.agreement is not None else "fp32"
        engine = Engine(
            moe,
            models=welcome.info.models,
            batch=config.batch,
            device=config.device,
            blend=first.blends[0],
            version=first.versions[0],
            slot=first.slot,
            spare=not config.low_memory,
            backend=welcome.info.backend if config.backend == "auto" else config.backend,
            precision=judged if config.precision == "auto" else config.precision,
            max_length=config.max_length,
            merge_share=config.merge_share,
        )
        if engine.live.backend.precision == welcome.info.precision:
            engine.judged(welcome.info.agreement, welcome.info.margin)
        super().__init__(engine, welcome.ids, tasks=welcome.tasks, config=config, outbox=box.put)
        self._link = Link(
            engine,
            learner,
            member=member,
            made_for=mine,
            box=box,
            depth=lambda: self.depth,
            renewed=lambda again: welcome.ids.take_over(again.ids),
        )
        self._link.follow(first)

    def start(self) -> None:
        """Take requests, as soon as the learner says that nothing newer answers elsewhere."""
        sys.setswitchinterval(SWITCH_SECONDS)
        super().start()
        self._link.start(JOIN)

    def stop(self, timeout: float = 30.0) -> bool:
        """Refuse new requests, answer what was accepted, tell the learner; whether it all was done in time."""
        answered = super().stop(ANSWERING_SHARE * timeout)
        return self._link.stop((1.0 - ANSWERING_SHARE) * timeout) and answered

    @property
    def ready(self) -> bool:
        """Whether requests are answered."""
        return self._link.answering

    def faults(self) -> tuple[str, ...]:
        """What is broken here, a sentence each; none if all is well."""
        return super().faults() + self._link.faults

    def _accept(self, job: Job) -> "Future[Any]":
        if not self.ready:
            raise Stopping("this replica is taking over the blend that answers; try again")
        return super()._accept(job)
