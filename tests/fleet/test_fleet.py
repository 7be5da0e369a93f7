"""All ready, then all switch: whatever is lost or dies on the way."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.fakes import Cluster
from tanbr.serve.records import ServiceError


class LearnerKilled(Exception):
    """The learner's process ends, wherever it is."""


def answering(cluster: Cluster, count: int) -> Cluster:
    cluster.turn()
    for _ in range(count):
        cluster.born().step()
    return cluster


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("alive", "replica replica-1 is no more"),
        ("hangs", "did not follow within 60 seconds"),
        ("broken", "OSError: the files are gone"),
    ],
)
def test_a_replica_that_dies_hangs_or_cannot_merge_is_ended_and_the_others_go_on(fault: str, says: str) -> None:
    cluster = answering(Cluster(), 3)
    one, before = cluster.replicas[1], cluster.now
    setattr(one.engine if fault == "broken" else one, fault, fault != "alive")
    order = cluster.turn()
    assert [each.alive for each in cluster.replicas] == [True, False, True]
    assert [each.link.at for each in cluster.replicas if each.alive] == [order.slot] * 2
    assert says in cluster.lost[0]
    assert list(cluster.fleet.members) == ["replica-0", "replica-2"]
    assert fault == "hangs" or cluster.now - before < 10  # only who hangs is waited for


def test_who_hangs_and_cannot_be_ended_keeps_the_old_order() -> None:
    cluster = answering(Cluster(), 2)
    cluster.stuck, cluster.replicas[0].hangs = True, True
    with pytest.raises(ServiceError, match="can neither follow nor be ended"):
        cluster.turn()
    assert [one.link.at for one in cluster.replicas] == [0, 0]
    cluster.replicas[0].hangs = False
    assert cluster.turn().slot == 1
    assert [one.link.at for one in cluster.replicas] == [1, 1]


def test_what_no_replica_can_merge_is_not_committed() -> None:
    cluster = answering(Cluster(), 2)
    for slot, broken in enumerate((True, False)):
        for one in cluster.replicas:
            one.engine.broken = broken
        if broken:
            with pytest.raises(ServiceError, match="no replica can merge it: OSError"):
                cluster.turn()
        else:
            cluster.turn()
        assert all(one.answering and one.link.at == slot for one in cluster.replicas)


def test_a_learner_that_starts_again_waits_for_those_it_let_answer() -> None:
    cluster = answering(Cluster(), 2)
    absent = cluster.replicas[0]
    absent.hangs = True
    cluster.start_learner()
    cluster.replicas[1].step()
    assert {name: one.here for name, one in cluster.fleet.members.items()} == {"replica-0": False, "replica-1": True}

    def both_come_back() -> None:
        absent.hangs = False
        for one in cluster.replicas:
            one.step()

    cluster.on_wait = [both_come_back]
    cluster.turn()
    assert [(one.alive, one.link.at) for one in cluster.replicas] == [(True, 1), (True, 1)]


def test_a_replica_that_is_far_behind_stops_answering_until_it_follows() -> None:
    cluster = answering(Cluster(), 1)
    (old,) = cluster.replicas
    cluster.store.clear()  # a state that knows nothing of it: restored from a copy
    cluster.replicas = []
    cluster.start_learner()
    for _ in range(3):
        cluster.turn()
    cluster.replicas = [old]
    old.step()  # says hello
    assert not old.answering
    old.step()
    old.step()
    assert old.answering
    assert old.link.at == 3


def test_messages_that_were_taken_are_taken_once() -> None:
    cluster = answering(Cluster(), 1)
    (one,) = cluster.replicas
    one.box.put("first")  # type: ignore[arg-type]
    one.step(lose="report")
    one.box.put("second")  # type: ignore[arg-type]
    one.step(lose="reply")
    one.step()
    one.step()
    one.step()
    assert one.port.took == ["first", "second"]


def test_gathering_has_everybody_report_and_does_not_wait_for_ever() -> None:
    cluster = answering(Cluster(), 2)
    for one in cluster.replicas:
        one.box.put(one.name)  # type: ignore[arg-type]
    cluster.fleet.gather(3.0)
    assert [one.port.took for one in cluster.replicas] == [["replica-0"], ["replica-1"]]
    cluster.replicas[0].hangs = True
    before = cluster.now
    cluster.fleet.gather(3.0)
    assert 3.0 <= cluster.now - before < 5.0


def test_who_leaves_is_not_waited_for_and_is_forgotten_on_disk() -> None:
    cluster = answering(Cluster(), 2)
    gone = cluster.replicas.pop(0)
    gone.box.put("last words")  # type: ignore[arg-type]
    gone.link.stop(0.0)
    assert gone.port.took == ["last words"]
    assert not gone.answering
    assert cluster.store["fleet"] == '["replica-1"]'
    cluster.turn()


def test_a_replica_is_written_down_before_it_may_answer() -> None:
    cluster = answering(Cluster(), 0)

    def full(key: str, value: str) -> None:
        raise ServiceError("the disk is full")

    cluster.store.set_meta = full  # type: ignore[method-assign]
    with pytest.raises(ServiceError, match="full"):
        cluster.born()
    assert cluster.fleet.members == {}


EVENTS = st.sampled_from(["step", "lose report", "lose reply", "die", "hang", "born", "kill learner", "leave"])


@settings(max_examples=300)
@given(st.lists(st.tuples(EVENTS, st.integers(0, 7)), max_size=60), st.integers(1, 4))
def test_no_interleaving_parts_replicas_or_shows_what_was_not_committed(
    events: list[tuple[str, int]], count: int
) -> None:
    """Whatever happens between any two steps of the learner and of the replicas."""
    cluster = answering(Cluster(), count)

    def event(name: str, which: int) -> Callable[[], None]:
        def happens() -> None:
            there = [one for one in cluster.replicas if one.alive and not one.hangs]
            one = there[which % len(there)] if there else None
            if name == "kill learner":
                raise LearnerKilled
            if name == "born" and len(cluster.replicas) < 8:
                cluster.born()
            elif one is not None and name == "die":
                one.alive = False
            elif one is not None and name == "hang":
                one.hangs = True
            elif one is not None and name == "leave":
                one.link.stop(0.0)
                one.alive = False
            elif one is not None:
                one.step({"lose report": "report", "lose reply": "reply"}.get(name, ""))
            cluster.check()

        return happens

    cluster.on_wait = [event(*one) for one in events]
    for _ in range(6):
        try:
            cluster.turn()
        except LearnerKilled:
            cluster.start_learner()
        cluster.check()
    cluster.on_wait = []
    for _ in range(3):  # whatever happened, things go on
        cluster.turn()
        cluster.check()
    last = len(cluster.orders) - 1
    assert all(one.link.at == last for one in cluster.replicas if one.answering)
    newcomer = cluster.born()
    newcomer.step()
    assert newcomer.answering
    assert newcomer.link.at == last
    assert not np.isnan(cluster.orders[last].blends).any()
