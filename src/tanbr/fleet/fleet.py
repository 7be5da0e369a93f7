"""The replicas as the learner sees them, and how all of them change together: all ready, written down, then commit.

Replicas ask (`ask`), the learner answers with what they lack: what was committed last, or if they follow that, what is
proposed next. So a lost message is made up for by the next one, and a late or a new replica is no special case.
Nothing is committed before every replica that may be answering has the proposal ready, and so follows the last order:
it says so, or is dead, or is ended. So no two of them are ever more than one order apart, and none answers with what
was not committed. Blends travel, weights never do.
"""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Protocol

from tanbr.serve.config import ServeConfig
from tanbr.serve.ids import RequestIds
from tanbr.serve.panel import Assignment, Message
from tanbr.serve.records import ServiceError, ServiceInfo
from tanbr.serve.store import Store
from tanbr.tasks.rows import Task
from tanbr.types import FloatArray

LOOK = 0.5  # seconds between two looks at who lives, while somebody is waited for
EVERY, LONGEST = 1.0, 5.0  # seconds between two reports of a replica that has nothing to do, in a small fleet …
REPORTS = 250  # … and in a large one, whose replicas together report so often a second: a report takes Ray 1 to 2 ms
SILENCE = 3.0  # seconds that a report may be late; then its replica may be dead
PATIENCE = 60.0  # seconds for a replica to make a blend ready, before it is ended: a merge takes a few
COMMIT_PATIENCE = 5.0  # seconds for a replica to follow an order; no merge is left to do then
KEY = "fleet"  # in the store: names of the replicas that may be answering
Wait = Callable[[threading.Condition, float], object]


@dataclass(frozen=True, eq=False)
class Order:
    """What is to answer: the learner has written it down and committed it."""

    slot: int  # that answers are credited to; every order has a later one
    versions: tuple[int, ...]  # (G,)
    blends: FloatArray  # (G, K)
    assignment: Assignment | None = field(default=None, repr=False)  # of a panel's requests to its models


@dataclass(frozen=True, eq=False)
class Proposal:
    """What may be ordered next: to be merged, and not to answer."""

    number: int
    versions: tuple[int, ...]  # (G,)
    blends: FloatArray  # (G, K)


@dataclass(frozen=True, eq=False)
class Welcome:
    """All that a replica needs beside the checkpoint's files."""

    order: Order
    ids: RequestIds = field(repr=False)  # with the key that the learner recognises its requests by
    config: ServeConfig
    info: ServiceInfo
    tasks: tuple[Task, ...]
    secret: bytes = field(repr=False)  # for the keys of clients: the same at every replica


@dataclass(frozen=True, eq=False)
class Report:
    """Which order a replica follows, and what it answered since the last report that was taken."""

    member: str  # a name that no other replica has or had
    at: int | None = None  # slot of the order that it follows; None: of none yet
    answering: bool = False
    tried: tuple[int, str] = (0, "")  # number of the last proposal that it made ready, or why it could not
    number: int = 0  # of the newest message
    messages: tuple[Message, ...] = ()  # all that are not known to be taken
    waiting: int = 0  # texts that wait for an answer

    def after(self, number: int) -> tuple[Message, ...]:
        """Give the messages that have higher numbers."""
        return self.messages[max(0, len(self.messages) - self.number + number) :]

    def settled(self, proposal: int) -> bool:
        """Whether the replica has a proposal ready, or cannot make it ready."""
        return self.tried[0] == proposal


@dataclass(frozen=True, eq=False)
class Reply:
    """What a replica is to do, now that its messages are taken; an empty reply means: report again."""

    known: bool = True  # False: it must say hello first
    order: Order | None = None  # to follow now
    proposal: Proposal | None = None  # to make ready
    answer: bool | None = None  # True: begin to answer; False: answer nobody until told; None: as before


class Machine(Protocol):
    """What runs replicas: only it knows that one of them is dead."""

    def alive(self, member: str) -> bool:
        """Whether it may still answer anybody; True if that cannot be found out."""
        ...

    def end(self, member: str) -> None:
        """End it, at once; another may take its place."""
        ...


@dataclass(eq=False)
class Member:
    """A replica that may be answering, or is about to."""

    answering: bool  # whether it may be: it was told to, or an earlier learner told it
    last: Report  # what it said last, or as much as is known
    heard: float  # when
    here: bool = False  # whether it has said hello to this learner
    number: int = 0  # of the newest message that was taken
    asked: Future[Reply] = field(default_factory=Future, repr=False)

    def reply(self, reply: Reply) -> None:
        """Answer what it asked, unless that is done."""
        if not self.asked.done() and self.asked.set_running_or_notify_cancel():
            self.asked.set_result(reply)


class Fleet:
    """Thread-safe: replicas' calls come from any thread, `spread`, `commit` and `withdraw` from the learner's."""

    def __init__(
        self,
        machine: Machine,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Wait = threading.Condition.wait,
        on_lost: Callable[[str], None] = lambda sentence: None,  # noqa: ARG005
    ) -> None:
        """Take what runs the replicas; `on_lost` hears, in a sentence, of each replica that is no more."""
        self._machine, self._clock, self._wait, self.on_lost = machine, clock, wait, on_lost
        self._changed = threading.Condition()  # guards all below
        self._members: dict[str, Member] = {}
        self._store: Store | None = None
        self._order: Order | None = None
        self._proposal: Proposal | None = None
        self._proposals = 0

    def open(self, store: Store) -> None:
        """Begin with the replicas that the store remembers: they may be answering."""
        self._store, now = store, self._clock()
        names = json.loads(store.meta(KEY) or "[]")
        self._members = {name: Member(True, Report(name, None, True), now) for name in names}

    @property
    def order(self) -> Order:
        """What was committed last."""
        if self._order is None:
            raise ServiceError("the learner is starting; nothing is committed yet")
        return self._order

    @property
    def members(self) -> dict[str, Member]:
        """The replicas that may be answering, or are about to, by name."""
        with self._changed:
            return dict(self._members)

    @property
    def every(self) -> float:
        """Seconds after which a replica that asks is answered even if there is nothing to do."""
        return min(LONGEST, max(EVERY, len(self._members) / REPORTS))

    # Called by replicas.

    def hello(self, report: Report) -> Order:
        """Take a replica in, or in again; give the order that it is to follow before it answers."""
        with self._changed:
            order, known = self.order, self._members.get(report.member)
            if known is None:
                self._write_down(*self._members, report.member)  # before it may answer
            self._members[report.member] = Member(
                report.answering and _near(order, report.at),
                replace(report, answering=False),
                self._clock(),
                here=True,
                number=known.number if known is not None and known.here else 0,
            )
            self._changed.notify_all()
            return order

    def ask(self, report: Report, take: Callable[[Message], None]) -> "Future[Reply]":
        """Take a report (`take` gets its new messages); the future holds what to do, once there is any."""
        with self._changed:
            member = self._members.get(report.member)
            if member is None or not member.here:
                done: Future[Reply] = Future()
                done.set_result(Reply(known=False))
                return done
            for message in report.after(member.number):
                take(message)
            member.number = max(member.number, report.number)
            member.last, member.answering = report, member.answering or report.answering
            member.heard = self._clock()
            member.asked.cancel()  # nobody waits any more for an answer to an earlier report
            member.asked = Future()
            self._answer(member)
            self._changed.notify_all()
            return member.asked

    def leave(self, report: Report, take: Callable[[Message], None]) -> None:
        """Take the last report of a replica that no longer answers."""
        with self._changed:
            member = self._members.get(report.member)
            for message in report.after(0 if member is None else member.number):
                take(message)
            if member is not None:
                self._drop(report.member)

    def _answer(self, member: Member) -> None:
        """Tell a replica that asked what it lacks, if it lacks anything."""
        order, proposal, last = self.order, self._proposal, member.last
        if last.at != order.slot:
            reply = Reply(order=order, answer=None if _near(order, last.at) else False)
        elif not last.answering:
            member.answering = True
            reply = Reply(answer=True)
        elif proposal is not None and not last.settled(proposal.number):
            reply = Reply(proposal=proposal)
        else:
            return
        member.reply(reply)

    # Called by the learner.

    def spread(self, versions: tuple[int, ...], blends: FloatArray) -> None:
        """Have every replica make blends (G, K) ready: all that may be answering are, when this returns.

        A replica that is too slow, or fails where others do not, is ended. Raises ServiceError if that is impossible,
        or if all fail.
        """
        with self._changed:
            self._proposals += 1
            number = self._proposals
            self._proposal = Proposal(number, versions, blends)
            self._answer_all()
            try:
                self._until(lambda one: one.last.settled(number))
                answering = self._answering()
                tried = {name: one.last.tried for name, one in answering.items()}
                whys = {name: why for name, (last, why) in tried.items() if last == number and why}
                if whys and len(whys) == len(answering):
                    raise ServiceError(f"no replica can merge it: {next(iter(whys.values()))}")
                for name, why in whys.items():
                    self._end(name, f"it cannot merge what the others can: {why}")
            except BaseException:
                self._proposal = None
                raise

    def withdraw(self) -> None:
        """Forget the proposal."""
        with self._changed:
            self._proposal = None

    def commit(self, order: Order) -> None:
        """Have every replica follow an order. A replica that is late goes on with the last one, and delays the next."""
        with self._changed:
            if self._order is not None and self._proposal is None:
                self.spread(order.versions, order.blends)
            self._order, self._proposal = order, None
            self._answer_all()
            if any(one.here for one in self._answering().values()):  # not where the learner has just begun
                self._until(lambda one: one.last.at == order.slot, seconds=COMMIT_PATIENCE, end=False)

    def gather(self, seconds: float) -> None:
        """Have every replica report what it answered up to now, as far as that takes no longer than `seconds`."""
        with self._changed:
            since, asked = self._clock(), [one for one in self._members.values() if one.here]
            for one in asked:
                one.reply(Reply())
            self._in_time(lambda: all(one.heard > since for one in asked if self._knows(one)), seconds)

    def look(self) -> None:
        """Forget replicas that are silent and dead."""
        with self._changed:
            for name, member in list(self._members.items()):
                if self._clock() - member.heard >= self.every + SILENCE and not self._machine.alive(name):
                    self._drop(name)
                    self.on_lost(f"replica {name} is no more")

    def _until(self, true: Callable[[Member], bool], *, seconds: float = PATIENCE, end: bool = True) -> None:
        """Wait until something is true of all that may be answering; `end` those of which it is not in time."""

        def late() -> list[str]:
            return [name for name, one in self._answering().items() if not true(one)]

        if not self._in_time(lambda: not late(), seconds) and end:
            for name in late():
                self._end(name, f"it did not follow within {seconds:g} seconds")

    def _in_time(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is done, with an eye on who lives; whether it was in time."""
        ends = self._clock() + seconds
        while not done():
            if self._clock() >= ends:
                return False
            self.look()
            self._wait(self._changed, LOOK)
        return True

    def _end(self, name: str, why: str) -> None:
        """End a replica that cannot follow: it would go on answering with an old blend."""
        self._machine.end(name)
        if not self._in_time(lambda: not self._machine.alive(name), SILENCE):
            raise ServiceError(f"replica {name} can neither follow nor be ended: {why}")
        self._drop(name)
        self.on_lost(f"replica {name} was ended: {why}")

    def _drop(self, name: str) -> None:
        if (member := self._members.pop(name, None)) is not None:
            member.asked.cancel()
        self._write_down(*self._members)
        self._changed.notify_all()

    def _write_down(self, *names: str) -> None:
        """Write names to disk: a learner that starts again knows whom it must wait for."""
        if self._store is not None:
            self._store.set_meta(KEY, json.dumps(sorted(names)))

    def _knows(self, member: Member) -> bool:
        return self._members.get(member.last.member) is member

    def _answering(self) -> dict[str, Member]:
        return {name: one for name, one in self._members.items() if one.answering}

    def _answer_all(self) -> None:
        for member in self._members.values():
            if member.here:
                self._answer(member)


def _near(order: Order, at: int | None) -> bool:
    """Whether a replica follows the order, or the one before it."""
    return at is not None and 0 <= order.slot - at <= 1
