"""The replicas as the learner sees them, and how all of them change together: all ready, written down, then commit.

Replicas ask (`ask`), the learner answers with what they lack: what was committed last, or if they follow that, what is
proposed next. So a message that is lost is made up for by the next, and a straggler or a newcomer is not a case of its
own. Nothing is committed before every replica that may be answering has the proposal ready, and so follows the last
order: it says so, or is dead, or is ended. So no two of them are ever more than one order apart, and none answers with
what was not committed.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from tanbr.errors import StateError
from tanbr.fleet.messages import Hello, Order, Proposal, Reply, Report
from tanbr.fleet.roster import Machine, Roster
from tanbr.serve.records import ServiceError
from tanbr.serve.store import Store
from tanbr.types import FloatArray

LOOK = 0.5  # seconds between two looks at who lives, while somebody is waited for
SILENCE = 3.0  # seconds without a report after which a replica may be dead
Wait = Callable[[threading.Condition, float], object]


@dataclass(eq=False)
class Member:
    """A replica that may be answering, or is about to."""

    name: str
    answering: bool  # whether it may be: it was told to, or an earlier learner told it
    at: int | None = None  # slot of the order that it follows; None: unknown, or none
    prepared: int | None = None
    failed: tuple[int, str] | None = None
    heard: float = 0.0
    number: int = 0  # of the newest messages that were taken
    reports: int = 0
    here: bool = False  # whether it has said hello to this learner
    wanted: bool = False  # whether it should report at once
    open: bool = False  # whether it says that it answers
    waiting: int = 0  # texts
    asked: Future[Reply] = field(default_factory=Future, repr=False)


class Fleet:
    """Thread-safe: replicas' calls come from any thread, `spread`, `commit` and `withdraw` from the learner's."""

    def __init__(
        self,
        machine: Machine,
        *,
        patience: float = 60.0,
        commit_patience: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        wait: Wait = threading.Condition.wait,
        on_lost: Callable[[str], None] = lambda sentence: None,  # noqa: ARG005
    ) -> None:
        """Wait `patience` seconds for a replica to make a blend ready before it is ended.

        With `wait` others may be let in; `on_lost` hears, in a sentence, of replicas that are no more.
        """
        self._machine, self._patience, self._commit_patience = machine, patience, commit_patience
        self._clock, self._wait, self.on_lost = clock, wait, on_lost
        self._changed = threading.Condition()  # guards all below
        self._members: dict[str, Member] = {}
        self._roster: Roster | None = None
        self._order: Order | None = None
        self._proposal: Proposal | None = None
        self._proposals = 0

    def open(self, store: Store) -> None:
        """Begin with the replicas that the store remembers: they may be answering."""
        self._roster = Roster(store)
        names = self._roster.read()
        self._members = {name: Member(name, answering=True, heard=self._clock()) for name in names}

    @property
    def order(self) -> Order:
        """What was committed last."""
        if self._order is None:
            raise ServiceError("the learner is starting; nothing is committed yet")
        return self._order

    @property
    def members(self) -> tuple[Member, ...]:
        """Who may be answering, or is about to."""
        with self._changed:
            return tuple(self._members.values())

    # --- replicas -----------------------------------------------------------------------------------------------------

    def hello(self, hello: Hello) -> Order:
        """Take a replica in, or in again; what it is to follow before it answers."""
        with self._changed:
            order = self.order
            near = hello.at is not None and 0 <= order.slot - hello.at <= 1
            known = self._members.get(hello.member)
            answering = hello.answering and near
            member = Member(hello.member, answering, at=hello.at, heard=self._clock(), here=True)
            self._members[hello.member] = member
            if known is not None:
                member.number = known.number if known.here else 0
            elif self._roster is not None:
                try:
                    self._roster.write(self._members)
                except BaseException:
                    del self._members[hello.member]  # who is not written down must not answer
                    raise
            self._changed.notify_all()
            return order

    def ask(self, report: Report, take: Callable[[Report], None]) -> "Future[Reply]":
        """Take a report in (`take` gets messages that are new); the future holds what to do, once there is anything."""
        with self._changed:
            member = self._members.get(report.member)
            if member is None or not member.here:
                done: Future[Reply] = Future()
                done.set_result(Reply(known=False))
                return done
            if report.messages and report.number > member.number:
                take(report)
                member.number = report.number
            member.at, member.prepared, member.failed = report.at, report.prepared, report.failed
            member.open, member.waiting = report.answering, report.waiting
            member.answering = member.answering or report.answering
            member.heard, member.reports, member.wanted = self._clock(), member.reports + 1, False
            member.asked.cancel()  # an earlier question whose answer nobody waits for
            member.asked = Future()
            self._answer(member)
            self._changed.notify_all()
            return member.asked

    def idle(self, member: str) -> Reply:
        """Answer a question for which nothing came up."""
        with self._changed:
            known = self._members.get(member)
            return Reply(known=False) if known is None or not known.here else Reply(taken=known.number)

    def leave(self, report: Report, take: Callable[[Report], None]) -> None:
        """Take the last report of a replica that answers nobody any more."""
        with self._changed:
            member = self._members.get(report.member)
            if report.messages and (member is None or report.number > member.number):
                take(report)
            if member is not None:
                self._drop(member)

    def _answer(self, member: Member) -> None:
        """Tell a replica that asked what it lacks, if it lacks anything."""
        order, proposal = self.order, self._proposal
        if member.at != order.slot:
            near = member.at is not None and 0 <= order.slot - member.at <= 1
            reply = Reply(order=order, answer=None if near else False)
        elif not member.open:
            member.answering = True
            reply = Reply(answer=True)
        elif proposal is not None and proposal.number not in (member.prepared, (member.failed or (None,))[0]):
            reply = Reply(proposal=proposal)
        elif member.wanted:
            reply = Reply()
        else:
            return
        if not member.asked.done() and member.asked.set_running_or_notify_cancel():
            member.asked.set_result(replace(reply, taken=member.number))

    # --- the learner --------------------------------------------------------------------------------------------------

    def spread(self, versions: tuple[int, ...], blends: FloatArray) -> None:
        """Have every replica make blends (G, K) ready: all that may be answering are, when this returns.

        Whoever is too slow, or fails where others do not, is ended; ServiceError if that is impossible, or if all fail.
        """
        with self._changed:
            self._proposals += 1
            proposal = self._proposal = Proposal(self._proposals, versions, blends)
            self._answer_all()
            try:
                self._until(lambda one: proposal.number in (one.prepared, (one.failed or (None,))[0]))
                failed = [one for one in self._answering() if one.failed and one.failed[0] == proposal.number]
                if failed and len(failed) == len(self._answering()):
                    raise ServiceError(f"no replica can merge it: {(failed[0].failed or (0, ''))[1]}")
                for member in failed:
                    self._end(member, f"it cannot merge what the others can: {(member.failed or (0, ''))[1]}")
            except BaseException:
                self._proposal = None
                raise

    def withdraw(self) -> None:
        """Forget the proposal."""
        with self._changed:
            self._proposal = None

    def commit(self, order: Order) -> None:
        """Have every replica follow an order. Who does not in time goes on with the last, and holds up the next."""
        with self._changed:
            if self._order is not None and self._proposal is None:
                self.spread(order.versions, order.blends)
            self._order, self._proposal = order, None
            self._answer_all()
            if not any(one.here for one in self._answering()):
                return  # the learner has just begun
            ends = self._clock() + self._commit_patience
            while self._clock() < ends and any(one.at != order.slot for one in self._answering()):
                self._bury()
                self._wait(self._changed, LOOK)

    def gather(self, seconds: float) -> None:
        """Have every replica report what it answered up to now, as far as that takes no longer than `seconds`."""
        with self._changed:
            had = {name: one.reports for name, one in self._members.items() if one.here}
            for name in had:
                self._members[name].wanted = True
            self._answer_all()
            ends = self._clock() + seconds
            while self._clock() < ends and any(
                (one := self._members.get(name)) is not None and one.reports <= count for name, count in had.items()
            ):
                self._wait(self._changed, LOOK)

    def look(self) -> None:
        """Forget replicas that died."""
        with self._changed:
            self._bury()

    def _until(self, true: Callable[[Member], bool]) -> None:
        """Wait until something is true of all that may be answering; those of whom it will not be are ended."""
        ends = self._clock() + self._patience
        while late := [one for one in self._answering() if not true(one)]:
            if self._clock() >= ends:
                for member in late:
                    self._end(member, f"it did not follow within {self._patience:g} seconds")
                return
            self._bury()
            self._wait(self._changed, LOOK)

    def _bury(self) -> None:
        """Forget who is silent and dead."""
        for member in list(self._members.values()):
            if self._clock() - member.heard >= SILENCE and not self._machine.alive(member.name):
                self._drop(member)
                self.on_lost(f"replica {member.name} is no more")

    def _end(self, member: Member, why: str) -> None:
        """End a replica that cannot follow: it would go on answering with what is old."""
        self._machine.end(member.name)
        ends = self._clock() + SILENCE
        while self._machine.alive(member.name):
            if self._clock() >= ends:
                raise ServiceError(f"replica {member.name} can neither follow nor be ended: {why}")
            self._wait(self._changed, LOOK)
        self._drop(member)
        self.on_lost(f"replica {member.name} was ended: {why}")

    def _drop(self, member: Member) -> None:
        self._members.pop(member.name, None)
        member.asked.cancel()
        if self._roster is not None:
            self._roster.write(self._members)
        self._changed.notify_all()

    def _answering(self) -> list[Member]:
        return [one for one in self._members.values() if one.answering]

    def _answer_all(self) -> None:
        for member in self._members.values():
            if member.here:
                self._answer(member)


def check_alike(own: object, other: object) -> None:
    """Refuse a replica that would merge other weights."""
    for name in ("checkpoint", "method", "experts"):
        mine, yours = getattr(own, name), getattr(other, name)
        if mine != yours:
            raise StateError(
                f"this replica has {name} {yours}, and the learner {mine}: give all of them the same checkpoint"
            )
