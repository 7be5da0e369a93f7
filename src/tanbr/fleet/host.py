"""The learner where replicas elsewhere answer: a service without a replica of its own, and what these ask of it."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from tanbr.errors import InputError
from tanbr.fleet.fleet import Fleet, check_alike
from tanbr.fleet.messages import Hello, Reply, Report, Welcome
from tanbr.fleet.roster import Machine
from tanbr.serve.lineage import made_for
from tanbr.serve.records import Feedback, Receipt, ServiceInfo, ServiceState
from tanbr.serve.service import Service

GATHER = 3.0  # seconds that a label waits for the answer it is about
CALLS = ("state", "slots", "versions", "tree", "pin", "unpin", "rollback", "end_slot", "feedback", "metrics", "info")


class LearnerHost:
    """Runs a learner; every method may be called from any thread."""

    def __init__(
        self, make: Callable[[Fleet], Service], machine: Machine, *, patience: float, metrics: Callable[[], bytes]
    ) -> None:
        """Make the service of a fleet, and start it."""
        self._fleet = Fleet(machine, patience=patience)
        self._service = service = make(self._fleet)
        self._fleet.on_lost = service.learner.alarm
        self._metrics = metrics
        self._made_for = made_for(service.learner.engine.moe, ())
        service.start()

    @property
    def service(self) -> Service:
        """The learner's service."""
        return self._service

    @property
    def fleet(self) -> Fleet:
        """The replicas."""
        return self._fleet

    def hello(self, hello: Hello) -> Welcome:
        """Take a replica in; StateError if it has another checkpoint."""
        check_alike(self._made_for, hello.made_for)
        order, service = self._fleet.hello(hello), self._service
        return Welcome(order, service.ids, service.learner.config, service.info, service.tasks, service.client_secret)

    def ask(self, report: Report) -> "Future[Reply]":
        """Take a report; the future holds what to do, once there is anything."""
        return self._fleet.ask(report, self._take)

    def idle(self, member: str) -> Reply:
        """Answer where nothing came up."""
        return self._fleet.idle(member)

    def leave(self, report: Report) -> None:
        """Take the last report of a replica."""
        self._fleet.leave(report, self._take)

    def _take(self, report: Report) -> None:
        for message in report.messages:
            self._service.put(message)

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Do what a replica's client or operator asks for."""
        if method not in CALLS:
            raise InputError(f"a learner has no {method!r}; it knows {', '.join(CALLS)}")
        own: dict[str, Callable[..., Any]] = {"metrics": self._metrics}
        doing = own.get(method) or getattr(self if hasattr(self, method) else self._service, method)
        return doing(*arguments, **named)

    def info(self) -> ServiceInfo:
        """What is served."""
        return self._service.info

    def feedback(self, items: list[Feedback], *, client: str = "") -> Receipt:
        """Take in rewards; they are on disk when this returns.

        A reward needs nothing but its request's id. A label is scored by the answer: where no replica has told that one
        yet, all are asked to; what is lost with its replica is unknown, and the client hears so.
        """
        if self._service.awaits_answers(items):
            self._fleet.gather(GATHER)
        return self._service.feedback(items, client=client)

    def state(self) -> ServiceState:
        """What the learner is at, with the texts that wait at all replicas."""
        return replace(self._service.state(), queue=sum(one.waiting for one in self._fleet.members))

    def stop(self, timeout: float) -> bool:
        """Save, and end; whether that was done in time."""
        return self._service.stop(timeout)
