"""A real learner and real replicas of the embedded model in one process, with a port of function calls between them."""

from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as NotYet
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serve.serving import TEXTS, Ledger, monitor, until
from tanbr.errors import StateError
from tanbr.fleet.fleet import Reply, Report
from tanbr.fleet.learner import LearnerHost
from tanbr.fleet.replica import LearnerGone, ReplicaService
from tanbr.lab.tasks import tiny
from tanbr.merge import open as open_moe
from tanbr.moe import embedded
from tanbr.serve.build import build
from tanbr.serve.config import ServeConfig
from tanbr.serve.engine import Engine
from tanbr.serve.lineage import made_for
from tanbr.serve.records import Feedback, Stopping
from tanbr.serve.service import Service

NOTHING_DIES: Any = SimpleNamespace(alive=lambda member: True)  # and nobody is ended
USUAL = ServeConfig(slot_seconds=3600.0, workers=1, threads=1, merge_share=1.0, explore="always", hold_back=0.0)


class DirectPort:
    """Calls the host, if there is one."""

    host: LearnerHost | None = None

    def __call__(self, method: str, *arguments: Any, **named: Any) -> Any:
        host = self.host
        if host is None:
            raise LearnerGone("there is none")
        answer = host.call(method, *arguments, **named)
        try:
            return answer.result(0.05) if method == "ask" else answer
        except NotYet:
            answer.cancel()
            return Reply()


class House:
    """A learner and its replicas."""

    def __init__(self, state: Path, taught: Path, **settings: Any) -> None:
        self.state, self.taught, self.settings, self.port = state, taught, settings, DirectPort()
        self.replicas: list[ReplicaService] = []
        self.start_learner()

    def start_learner(self) -> None:
        def make(make_engine: Callable[..., Engine]) -> Service:
            return Service(
                open_moe(embedded.path()),
                tasks=tiny.TASKS,
                config=USUAL.model_copy(update=self.settings),
                state=self.state,
                router=None if self.settings.get("models", 1) > 1 else Ledger(),  # type: ignore[arg-type]
                monitor=monitor(self.taught),
                make_engine=make_engine,
            )

        self.port.host = LearnerHost(make, NOTHING_DIES, metrics=lambda: b"figures")

    def add(self) -> ReplicaService:
        name = f"replica-{len(self.replicas)}"
        self.replicas.append(ReplicaService(open_moe(embedded.path()), self.port, member=name))
        self.replicas[-1].start()
        return self.replicas[-1]

    def stop(self) -> None:
        for one in self.replicas:
            assert one.stop(20.0)
        if self.port.host is not None:
            assert self.port.host.service.stop(20.0)


@pytest.fixture
def house(tmp_path: Path, taught: Path, request: pytest.FixtureRequest) -> Iterator[House]:
    house = House(tmp_path / "state", taught, **getattr(request, "param", {}))
    house.add()
    house.add()
    yield house
    house.stop()


def test_a_fleets_self_check_takes_a_method_that_replicas_have(tmp_path: Path) -> None:
    port, quiet = DirectPort(), ServeConfig(slot_seconds=3600.0, models=2)
    port.host = LearnerHost(
        lambda make: build(None, config=quiet, state=tmp_path, check=True, make_engine=make), NOTHING_DIES
    )
    try:
        assert ReplicaService(open_moe(embedded.path()), port, member="one").info.models == 2
    finally:
        port.host.service.stop(20.0)


def versions(house: House) -> list[int]:
    return [one.submit(TEXTS[:2]).result(30).merge_version for one in house.replicas]


def test_all_replicas_answer_alike_and_change_together(house: House) -> None:
    first, second = house.replicas
    one, other = (replica.submit(TEXTS[:8]).result(30) for replica in (first, second))
    np.testing.assert_array_equal(one.logits, other.logits)
    assert not set(one.request_ids) & set(other.request_ids)
    until(lambda: first.state().answered == second.state().requests == 16)  # the learner counts for all
    assert versions(house) == [1, 1]
    blend = np.eye(8)[2]
    number = second.pin(blend)
    assert versions(house) == [number, number] == [2, 2]
    assert first.rollback() == 1
    assert versions(house) == [1, 1]
    assert first.state().answered == second.state().answered
    assert [view.merge_version for view in first.versions()] == [2, 1]
    assert first.slots()[0].slot == first.state().slot
    assert second.metrics() == b"figures"


def test_feedback_is_known_whoever_answered_and_told_once(house: House) -> None:
    first, second = house.replicas
    assert first.client_secret == second.client_secret  # a client is the same one at all of them
    answered = first.submit(TEXTS[:6]).result(30)
    items = [Feedback(key, reward=0.5, task="sentiment") for key in answered.request_ids]
    assert second.feedback(items).accepted == 6
    assert first.feedback(items).repeated == 6
    labelled = second.submit([TEXTS[0]]).result(30)  # whose answer has to be reported first
    label = Feedback(labelled.request_ids[0], task="sentiment", label="positive")
    assert first.feedback([label, replace(label, request_id="a" * 32)]).outcomes == ("accepted", "unknown")
    for _ in range(3):
        second.end_slot()
    host = house.port.host
    assert host is not None
    assert host.service.learner.router.told == pytest.approx(7.0)  # type: ignore[attr-defined]


def test_without_a_learner_replicas_answer_and_then_go_on_with_the_next(house: House) -> None:
    host = house.port.host
    assert host is not None
    house.port.host = None
    host.service.store.close()  # as when its process is killed
    before = house.replicas[0].submit(TEXTS[:4]).result(30)
    with pytest.raises(LearnerGone):
        house.replicas[0].feedback([Feedback(before.request_ids[0], reward=1.0)])
    house.start_learner()
    given = [Feedback(key, reward=1.0, task="sentiment") for key in before.request_ids]
    assert house.replicas[1].feedback(given).accepted == 4
    slot = house.replicas[0].end_slot()
    after = [one.submit(TEXTS[:1]).result(30) for one in house.replicas]
    assert slot == 1
    assert len({one.merge_version for one in after}) == 1
    given = [Feedback(one.request_ids[0], reward=1.0) for one in after]
    assert house.replicas[0].feedback(given).accepted == 2  # ids of the learner's new epoch


def test_another_checkpoint_is_refused(house: House) -> None:
    mine = made_for(open_moe(embedded.path()), ())
    for name, theirs in (("checkpoint", "another"), ("experts", 9), ("method", "ties")):
        with pytest.raises(StateError, match=f"has {name} {theirs}, .* give all of them the same checkpoint"):
            house.port("hello", Report("other"), replace(mine, **{name: theirs}))


def test_a_replica_that_was_not_let_in_answers_nobody(house: House) -> None:
    late = ReplicaService(open_moe(embedded.path()), house.port, member="late")
    assert not late.ready
    with pytest.raises(Stopping, match="taking over"):
        late.submit(TEXTS[:1])
    late.start()
    assert late.ready
    house.replicas.append(late)
    assert versions(house) == [1, 1, 1]


@pytest.mark.parametrize("house", [{"models": 2}], indirect=True)
def test_a_panel_is_served_by_all(house: House) -> None:
    for _ in range(3):
        house.replicas[0].end_slot()
        answered = [one.submit(TEXTS).result(60) for one in house.replicas]
        np.testing.assert_array_equal(*[one.merge_versions or one.merge_version for one in answered])
    assert len(house.replicas[0].state().models) == 2
