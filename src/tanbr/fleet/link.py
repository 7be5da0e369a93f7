"""A replica's tie to the learner: it reports, does what it is told, and while no learner answers goes on as it was."""

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from tanbr.errors import StateError, TanbrError
from tanbr.fleet.messages import Hello, Order, Proposal, Reply, Report, Welcome
from tanbr.fleet.outbox import ReportBox
from tanbr.serve.engine import Engine
from tanbr.serve.lineage import MadeFor
from tanbr.serve.panel import Staged
from tanbr.serve.records import ServiceError

RETRY = 0.2  # seconds before a learner that did not answer is asked again
REST = 0.02  # least seconds between two reports


class LearnerGone(ServiceError):  # noqa: N818 - it will be back
    """No learner answers at the moment: it is being started again, or cannot be reached."""


class LearnerPort(Protocol):
    """The way to the learner, whatever lies between. Raises LearnerGone where that does not get through."""

    def hello(self, hello: Hello) -> Welcome:
        """Be taken in; StateError if the learner has another checkpoint."""
        ...

    def ask(self, report: Report) -> Reply:
        """Report, and wait (for about a second at most) for something to do."""
        ...

    def leave(self, report: Report) -> None:
        """Report for the last time."""
        ...

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Have the learner's service do something; what it raises is raised here."""
        ...


class Link:
    """Follows the learner's orders in a thread of its own."""

    def __init__(
        self,
        engine: Engine,
        learner: LearnerPort,
        *,
        member: str,
        made_for: MadeFor,
        box: ReportBox,
        depth: Callable[[], int] = lambda: 0,
        renewed: Callable[[Welcome], None] = lambda welcome: None,  # noqa: ARG005
    ) -> None:
        """Let `renewed` hear what a learner that was started again says in welcome."""
        self._engine, self._learner, self._member, self._made_for = engine, learner, member, made_for
        self._box, self._depth, self._renewed = box, depth, renewed
        self.at: int | None = None  # slot of the order that is followed
        self.answering = False
        self._prepared: tuple[Proposal, list[Staged]] | None = None
        self._failed: tuple[int, str] | None = None
        self._stopping = threading.Event()
        self._fault = ""
        self._thread = threading.Thread(target=self._run, name="tanbr-link", daemon=True)

    def start(self) -> None:
        """Report and follow from now on."""
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """Tell the learner the rest, and leave; whether it heard."""
        self._stopping.set()
        self.answering = False
        if self._thread.ident is not None:
            self._thread.join(timeout)
        for _ in range(2):  # the lot that was under way, and what came since
            try:
                number, _ = self._box.lot()
                self._learner.leave(self._report())
                self._box.taken(number)
            except TanbrError:
                return False
        return not self._thread.is_alive()

    def wait(self, seconds: float) -> bool:
        """Wait until the learner has let this replica answer; whether it has."""
        ends = time.monotonic() + seconds
        while not self.answering and not self._fault and time.monotonic() < ends:
            self._stopping.wait(REST)
        return self.answering

    def faults(self) -> tuple[str, ...]:
        """Say why this replica cannot follow any more; nothing if it can."""
        return (self._fault,) if self._fault else ()

    def step(self) -> None:
        """Report once, and do what the learner says."""
        reply = self._learner.ask(self._report())
        if not reply.known:
            self._greet()
            return
        self._box.taken(reply.taken)
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
        staged = None if self._prepared is None else self._prepared[1]
        if self._prepared is None or not _same(self._prepared[0], order):
            self._engine.discard()
            staged = self._merged(order)
        self._prepared = None
        lineup = self._engine.commit(*(staged or ()), slot=order.slot, assignment=order.assignment)
        versions = tuple(one.version for one in lineup.models)
        if versions != order.versions:
            raise StateError(f"merge versions {versions} answer here instead of {order.versions}: restart this replica")
        self.at = order.slot

    def _prepare(self, proposal: Proposal) -> None:
        self._engine.discard()
        self._prepared = None
        try:
            self._prepared = proposal, self._merged(proposal)
        except Exception as error:  # the files, the memory: what answers goes on, and the learner decides
            self._engine.discard()
            self._failed = proposal.number, f"{type(error).__name__}: {error}"

    def _merged(self, wanted: Order | Proposal) -> list[Staged]:
        return [
            self._engine.prepare(blend, version=version)
            for blend, version in zip(wanted.blends, wanted.versions, strict=True)
        ]

    def _greet(self) -> None:
        """Say hello to a learner that does not know this replica."""
        welcome = self._learner.hello(Hello(self._member, self._made_for, self.at, self.answering))
        if self.at is None or not 0 <= welcome.order.slot - self.at <= 1:
            self.answering = False
        self._renewed(welcome)
        self._failed = None  # its numbers were another learner's
        self._prepared = None
        self._engine.discard()

    def _report(self) -> Report:
        number, messages = self._box.lot()
        return Report(
            self._member,
            self.at,
            self.answering,
            prepared=None if self._prepared is None else self._prepared[0].number,
            failed=self._failed,
            number=number,
            messages=messages,
            waiting=self._depth(),
        )

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
                self._fault = f"this replica follows no more: {type(error).__name__}: {error}"
                return


def _same(proposal: Proposal, order: Order) -> bool:
    return proposal.versions == order.versions and np.array_equal(proposal.blends, order.blends)
