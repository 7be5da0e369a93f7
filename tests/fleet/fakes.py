"""Replicas without a model and a machine that may lose them: the real link and the real fleet between them."""

import contextlib
from typing import Any

import numpy as np

from tanbr.fleet.fleet import LOOK, Fleet, Order, Reply, Report, Welcome
from tanbr.fleet.replica import LearnerGone, Link, ReportBox
from tanbr.serve.lineage import MadeFor
from tanbr.serve.panel import Live, Panel, Staged

MADE_FOR = MadeFor((), ("a", "b"), "average", "abc")


class FakeStore(dict[str, Any]):
    """Settings in memory, that outlive a learner."""

    meta, set_meta = dict.get, dict.__setitem__


class FakeEngine:
    """Merges nothing; knows what answers."""

    broken = False

    def __init__(self) -> None:
        self.panel = Panel((Live(None, 0, None),))  # type: ignore[arg-type]

    def prepare(self, blend: Any, *, version: int) -> Staged:
        if self.broken:
            raise OSError("the files are gone")
        return Staged(None, version, np.asarray(blend), changed=True)

    def discard(self, *staged: Staged) -> None:
        pass

    def commit(self, *staged: Staged, slot: int, assignment: Any) -> Panel:
        models = tuple(Live(None, one.version, one.blend, slot) for one in staged)  # type: ignore[arg-type]
        self.panel = Panel(models, assignment)
        return self.panel


class Port:
    """The way from one replica to the learner that there is at the moment; `lose` says which message is lost next."""

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster, self.lose = cluster, ""
        self.took: list[Any] = []

    def __call__(self, method: str, report: Report, *_: MadeFor) -> Any:
        fleet = self.cluster.fleet
        if method == "hello":
            return Welcome(fleet.hello(report), None, None, None, (), b"")  # type: ignore[arg-type]
        if method == "leave":
            return fleet.leave(report, self.took.append)
        lose, self.lose = self.lose, ""
        if lose == "report":
            raise LearnerGone("lost")
        asked = fleet.ask(report, self.took.append)
        if lose == "reply":
            raise LearnerGone("lost")
        return asked.result() if asked.done() else Reply()


class FakeReplica:
    """A replica that does one thing at a time, when it is told to."""

    def __init__(self, cluster: "Cluster", name: str) -> None:
        self.name, self.alive, self.hangs = name, True, False
        self.engine, self.box, self.port = FakeEngine(), ReportBox(), Port(cluster)
        self.link = Link(self.engine, self.port, member=name, made_for=MADE_FOR, box=self.box)  # type: ignore[arg-type]
        self.link.follow(self.port("hello", Report(name)).order)

    @property
    def answering(self) -> bool:
        return self.alive and self.link.answering

    def step(self, lose: str = "") -> None:
        self.port.lose = lose
        with contextlib.suppress(LearnerGone):
            self.link.step()


class Cluster:
    """Replicas, the machine they run on, a clock, and a learner's fleet that may be started again."""

    def __init__(self) -> None:
        self.store, self.now, self.stuck = FakeStore(), 0.0, False
        self.replicas: list[FakeReplica] = []
        self.lost: list[str] = []
        self.orders: list[Order] = []  # that were written down
        self.on_wait: list[Any] = []  # what happens while the learner waits; then every replica does a step
        self.start_learner()

    def start_learner(self) -> None:
        """Start a learner, the first or the next; it goes on with what was written down last."""
        self.fleet = Fleet(self, clock=lambda: self.now, wait=self.waits, on_lost=self.lost.append)
        self.fleet.open(self.store)  # type: ignore[arg-type]
        if self.orders:
            self.fleet.commit(self.orders[-1])

    def alive(self, member: str) -> bool:
        return any(one.alive for one in self.replicas if one.name == member)

    def end(self, member: str) -> None:
        for one in self.replicas:
            one.alive = one.alive and (one.name != member or self.stuck)

    def waits(self, condition: Any, seconds: float) -> None:
        self.now += LOOK
        if self.on_wait:
            self.on_wait.pop(0)()
            return
        for one in self.replicas:
            if one.alive and not one.hangs:
                one.step()

    def born(self) -> FakeReplica:
        self.replicas.append(FakeReplica(self, f"replica-{len(self.replicas)}"))
        return self.replicas[-1]

    def turn(self) -> Order:
        """All ready, written down, committed."""
        slot = len(self.orders)
        order = Order(slot, (slot + 1,), np.array([[1.0 / (slot + 1), slot / (slot + 1)]]))
        self.fleet.spread(order.versions, order.blends)
        self.orders.append(order)
        self.fleet.commit(order)
        return order

    def check(self) -> None:
        """No two that answer are more than one order apart, and what answers was written down."""
        at = [one.link.at for one in self.replicas if one.answering]
        assert None not in at
        slots = [slot for slot in at if slot is not None]
        assert not slots or max(slots) - min(slots) <= 1, slots
        for one in self.replicas:
            if one.answering:
                (model,) = one.engine.panel.models
                order = self.orders[model.slot]
                assert (model.version,) == order.versions
                np.testing.assert_array_equal(model.blend, order.blends[0])
                assert model.slot >= len(self.orders) - 2, "older than the last commit and one slot"
