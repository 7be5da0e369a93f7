"""What a slot costs a fleet of many replicas: bytes from pickles, milliseconds from the real fleet and links.

    python benchmarks/fleet.py [--replicas 10 100 1000] [--out docs/results/ray/model.json]

No model, no network: replicas are the real `Link` around an engine that merges nothing, all in one thread, so what is
measured is the learner's work and the replicas' together, one after another. The network's part is reckoned.
"""

import argparse
import os
import pickle
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from serving.rounds import report
from tanbr.fleet.fleet import Fleet, Order, Proposal, Reply, Report, Welcome
from tanbr.fleet.replica import Link, ReportBox
from tanbr.lab.corpus import taught_monitor
from tanbr.lab.tasks import tiny
from tanbr.serve.build import build
from tanbr.serve.config import ServeConfig
from tanbr.serve.lineage import MadeFor
from tanbr.serve.panel import Answers, Live, Panel, Staged

K, V, COLUMNS = 8, 8, 15
MADE_FOR = MadeFor((), ("",) * K, "average", "0" * 32)


class NoEngine:
    """Merges nothing."""

    def prepare(self, blend: Any, *, version: int) -> Staged:
        """Be ready at once."""
        return Staged(None, version, np.asarray(blend), changed=True)

    def discard(self, *staged: Staged) -> None:
        """Nothing happened."""

    def commit(self, *staged: Staged, slot: int, assignment: Any) -> Panel:
        """Switch at once."""
        return Panel(tuple(Live(None, one.version, one.blend, slot) for one in staged), assignment)  # type: ignore[arg-type]


def port_of(fleet: Fleet) -> Any:
    """Make the way to a fleet; what a report crosses is pickled on its way, as it would be."""

    def call(method: str, message: Any, *_: MadeFor) -> Any:
        if method == "hello":
            return Welcome(fleet.hello(message), None, None, None, (), b"")  # type: ignore[arg-type]
        asked = fleet.ask(pickle.loads(pickle.dumps(message)), lambda message: None)  # noqa: ARG005 - our own
        return pickle.loads(pickle.dumps(asked.result() if asked.done() else Reply()))

    return call


def slot_seconds(count: int, *, slots: int = 5) -> dict[str, float]:
    """Processor time of a slot's turn for so many replicas, and of a second's reports without anything to say."""
    links: list[Link] = []

    def everybody_steps(condition: object, seconds: float) -> None:  # noqa: ARG001 - as threading's
        for link in links:
            link.step()

    fleet = Fleet(SimpleNamespace(alive=lambda member: True), wait=everybody_steps)  # noqa: ARG005
    orders = [Order(slot, (slot + 1,), np.random.default_rng(slot).dirichlet(np.ones(K))[None]) for slot in range(99)]
    fleet.commit(orders[0])
    port = port_of(fleet)
    for number in range(count):
        name = f"SERVE_REPLICA::tanbr#Replica#{number:08}"
        link = Link(NoEngine(), port, member=name, made_for=MADE_FOR, box=ReportBox())  # type: ignore[arg-type]
        link.follow(port("hello", Report(name)).order)
        link.step()
        links.append(link)
    started = time.process_time()
    for order in orders[1 : slots + 1]:
        fleet.spread(order.versions, order.blends)
        fleet.commit(order)
    turned = (time.process_time() - started) / slots
    assert all(link.at == slots and link.answering for link in links)
    started = time.process_time()
    for link in links:
        link.step()
    return {"replicas": count, "turn_ms": 1e3 * turned, "idle_reports_ms": 1e3 * (time.process_time() - started)}


def sizes() -> dict[str, int]:
    """Bytes of each message, pickled."""
    blends = np.random.default_rng(0).dirichlet(np.ones(K))[None]
    order, name = Order(7, (8,), blends), "SERVE_REPLICA::tanbr#Replica#abcdefgh"

    def answers(count: int) -> Answers:
        ids, text = tuple(os.urandom(12) for _ in range(count)), "the farmer found the garden lovely in the morning"
        texts = tuple(f"{text} {number}" for number in range(count))
        return Answers(8, 7, ids, texts, np.zeros((count, COLUMNS)))

    def size(value: object) -> int:
        return len(pickle.dumps(value))

    report = Report(name, 7, answering=True)
    return {
        "proposal": size(Reply(proposal=Proposal(1, (8,), blends))),
        "order": size(Reply(order=order)),
        "empty_report": size(report),
        "empty_reply": size(Reply()),
        "request_of_a_report": (size(answers(320)) - size(answers(32))) // 288,
        "recogniser_of_a_panel": size(taught_monitor(seed=0, per_task=30).snapshot()),
    }


def learner_slot(replicas: int, *, each: int = 8, slots: int = 3) -> dict[str, float]:
    """What a slot takes a real learner whose replicas report so many texts each: bytes, and the processor's time.

    The embedded model's own learner: it takes the reports, recognises and stores what is in them, and turns the slot.
    """
    rows = [row.text for task in tiny.TASKS for row in tiny.generate(task.name, 1 + replicas * each // V, seed=5)]
    laps: dict[str, list[float]] = {"take_ms": [], "read_ms": [], "turn_ms": []}
    with tempfile.TemporaryDirectory() as folder:
        service = build(None, config=ServeConfig(threads=1, practice=0.0), state=Path(folder) / "state")
        for _ in range(slots):
            number, lot = service.learner.slot.number, []
            for n in range(replicas):
                texts = tuple(rows[n * each : (n + 1) * each])
                ids = tuple(service.ids.issue(number, each))
                lot.append(pickle.dumps(Answers(1, number, ids, texts, np.zeros((each, COLUMNS)))))
            at = [time.process_time()]
            for message in lot:
                service.put(pickle.loads(message))
            at.append(time.process_time())
            service.learning.read()
            at.append(time.process_time())
            assert service.learning.turn()
            at.append(time.process_time())
            for name, took in zip(laps, np.diff(at), strict=True):
                laps[name].append(1e3 * took)
        service.store.close()
    return {
        "replicas": replicas,
        "texts": replicas * each,
        "bytes_up": sum(map(len, lot)),
        **{name: min(took) for name, took in laps.items()},
    }


def main() -> None:
    """Print the figures, and write them down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--quick", action="store_true", help="ten replicas alone")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.quick:
        given.replicas = [10]
    found = {
        "load": os.getloadavg()[0],
        "experts": K,
        "bytes": sizes(),
        "learner": [learner_slot(count) for count in given.replicas],
        "turns": [slot_seconds(count) for count in given.replicas],
    }
    report(found, given.out)


if __name__ == "__main__":
    main()
