"""The learner where replicas elsewhere answer: a service without a replica of its own, and what these ask of it."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tanbr.errors import StateError
from tanbr.fleet.fleet import Fleet, Machine, Order, Reply, Report, Welcome
from tanbr.merge import Moe
from tanbr.serve.engine import Engine
from tanbr.serve.lineage import MadeFor, made_for
from tanbr.serve.panel import Assignment, Panel, Staged
from tanbr.serve.records import Feedback, Receipt, ServiceState
from tanbr.serve.service import Service

GATHER = 3.0  # seconds that a label waits for the answer it is about


class FleetEngine(Engine):
    """The learner's engine: it merges to check blends, and every replica commits what it commits."""

    answers_here = False

    def __init__(self, moe: Moe, *, fleet: Fleet, **settings: Any) -> None:
        """Take the settings of an `Engine`."""
        super().__init__(moe, **settings)
        self._fleet = fleet

    def spread(self, *staged: Staged) -> None:
        """Have every replica make what was prepared ready; if that fails, nothing is prepared."""
        try:
            self._fleet.spread(tuple(one.version for one in staged), np.array([one.blend for one in staged]))
        except BaseException:
            self.discard()
            raise

    def discard(self, *staged: Staged) -> None:
        """Forget what was prepared, here and everywhere."""
        super().discard(*staged)
        self._fleet.withdraw()

    def commit(self, *staged: Staged, slot: int | None = None, assignment: Assignment | None = None) -> Panel:
        """Let what was prepared answer everywhere; first here, where it may fail."""
        panel = super().commit(*staged, slot=slot, assignment=assignment)
        blends = np.array([one.blend for one in panel.models])
        versions = tuple(one.version for one in panel.models)
        self._fleet.commit(Order(panel.models[0].slot, versions, blends, panel.assignment))
        return panel


class LearnerHost:
    """Runs a learner; every method may be called from any thread."""

    def __init__(
        self,
        make: Callable[[Callable[..., Engine]], Service],
        machine: Machine,
        *,
        metrics: Callable[[], bytes] = bytes,
    ) -> None:
        """Make a service with the engine of a fleet, and start it; `metrics` is what Prometheus reads."""
        self.fleet = fleet = Fleet(machine)
        self.service = make(partial(FleetEngine, fleet=fleet))
        try:
            fleet.open(self.service.store)
        except BaseException:
            self.service.stop()
            raise
        fleet.on_lost = self.service.learning.alarms
        self.metrics = metrics
        self._made_for = made_for(self.service.learning.world.engine.moe, ())
        self.service.start()

    def hello(self, report: Report, made_for: MadeFor) -> Welcome:
        """Take a replica in; refuse one that would merge other weights. Its own `made_for` names no tasks."""
        for name in ("checkpoint", "method", "experts"):
            mine, theirs = getattr(self._made_for, name), getattr(made_for, name)
            if mine != theirs:
                raise StateError(
                    f"this replica has {name} {theirs}, and the learner {mine}: give all of them the same checkpoint"
                )
        order, service = self.fleet.hello(report), self.service
        return Welcome(
            order, service.ids, service.learning.world.config, service.info, service.tasks, service.client_secret
        )

    def ask(self, report: Report) -> "Future[Reply]":
        """Take a report; the future holds what to do, once there is anything."""
        return self.fleet.ask(report, self.service.put)

    def leave(self, report: Report) -> None:
        """Take the last report of a replica."""
        self.fleet.leave(report, self.service.put)

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Do what a replica, its client or its operator asks for."""
        found = getattr(self if hasattr(self, method) else self.service, method)
        return found(*arguments, **named) if callable(found) else found

    def feedback(self, items: list[Feedback], *, client: str = "") -> Receipt:
        """Take in rewards; they are on disk when this returns.

        A label is scored by the answer: where no replica has reported that yet, all are asked to. An answer that is
        lost with its replica is unknown.
        """
        if self.service.awaits_answers(items):
            self.fleet.gather(GATHER)
        return self.service.feedback(items, client=client)

    def state(self) -> ServiceState:
        """What the learner is doing, with the texts that wait at all replicas."""
        return replace(self.service.state(), queue=sum(one.last.waiting for one in self.fleet.members.values()))
