import threading
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import tanbr
from serve.serving import ROWS, TEXTS, K, Run, answer, service, told, until
from tanbr.errors import ConfigError, InputError
from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.serve.config import ServeConfig
from tanbr.serve.engine import Engine
from tanbr.serve.labels import label_space
from tanbr.serve.records import Answered, Feedback, Overloaded, ServiceError, Stopping
from tanbr.serve.service import Service


def test_every_answer_under_swaps_is_of_exactly_the_version_it_names(live: Service, moe: Moe) -> None:
    answers: list[Answered] = []
    done = threading.Event()

    def client() -> None:
        while not done.is_set():
            answers.append(live.submit(TEXTS[:5]).result(30))

    clients = [threading.Thread(target=client) for _ in range(3)]
    for thread in clients:
        thread.start()
    for _ in range(10):
        live.end_slot()
    done.set()
    for thread in clients:
        thread.join()
    blends = {view.merge_version: view.blend for view in live.slots()}
    engine = Engine(moe)
    assert len({answered.merge_version for answered in answers}) > 3
    for version in {answered.merge_version for answered in answers}:
        engine.swap(blends[version])
        expected = engine.logits(TEXTS[:5])
        for answered in answers:
            if answered.merge_version == version:
                np.testing.assert_allclose(answered.logits, expected, atol=1e-4)


def test_delayed_labels_are_scored_as_the_task_scores(live: Service) -> None:
    answered = live.submit(TEXTS).result(30)
    until(lambda: live.slots(1)[0].requests == len(ROWS))
    truth = [
        Feedback(i, task=row.task, label=row.target if spec.graded else spec.labels[int(row.target)])
        for i, row in zip(answered.request_ids, ROWS, strict=True)
        for spec in [tiny.BY_NAME[row.task]]
    ]
    assert live.feedback(truth).accepted == len(ROWS)
    space = label_space(tiny.TASKS, live.info.columns)
    assert space is not None
    expected = space.rewards(ROWS, space.read(ROWS, answered.logits))
    stored = [row.reward for row in live.store.feedback(after=0)]
    np.testing.assert_allclose(stored, expected, atol=1e-5)


def test_rewards_are_credited_to_the_slot_that_answered_and_each_is_told_once(live: Service) -> None:
    first = live.submit(TEXTS[:8]).result(30).request_ids
    answer(live, 8)
    live.end_slot()
    assert told(live) == 0  # a slot stays open for one more: feedback takes its time
    live.feedback([Feedback(i, reward=1.0, task="sentiment") for i in first[:4]])
    live.end_slot()
    assert told(live) == 12
    live.feedback([Feedback(i, reward=1.0, task="sentiment") for i in first[4:]])  # late: after its slot was told
    live.end_slot()
    live.end_slot()
    assert told(live) == 16
    old = next(view for view in live.slots() if view.slot == 0)
    assert old.told
    assert old.counts[6] == 12
    assert old.reward[6] == pytest.approx((8 * 0.5 + 4 * 1.0) / 12)


def test_a_disk_that_fills_refuses_feedback_keeps_answering_and_recovers(live: Service) -> None:
    accepted = answer(live)
    with live.store.transaction() as write:  # SQLite's own way to have a full disk
        write.execute(f"PRAGMA max_page_count = {write.execute('PRAGMA page_count').fetchone()[0]}")
    given: list[Feedback] = []

    def fill_up() -> None:
        nonlocal accepted, given
        while True:  # what is left of the last pages takes a few
            given = [Feedback(i, reward=1.0, task="sentiment") for i in live.submit(TEXTS[:8]).result(30).request_ids]
            accepted += live.feedback(given).accepted

    def turn() -> None:
        while True:
            live.end_slot()

    with pytest.raises(ServiceError, match="full"):
        fill_up()
    with pytest.raises(ServiceError, match="full"):
        live.feedback(given)
    said = [alarm.text for alarm in live.state().alarms if alarm.text.startswith("feedback is refused: ")]
    assert len(said) == 1  # however often
    assert "full" in said[0]
    with pytest.raises(ServiceError, match="goes on"):
        turn()
    version = live.state().merge_version
    assert live.submit(TEXTS[:4]).result(30).merge_version == version
    with live.store.transaction() as write:
        write.execute("PRAGMA max_page_count = 1000000")
    accepted += live.feedback(given).accepted
    for _ in range(3):
        live.end_slot()
    assert told(live) == accepted
    assert live.state().merge_version > version


def test_rewards_that_fall_roll_the_blend_back_at_once(live: Service) -> None:
    for _ in range(5):
        answer(live, 16, reward=0.9)
    live.end_slot()
    good = live.state()
    for _ in range(5):
        answer(live, 16, reward=0.9)
    live.end_slot()
    bad = live.state().merge_version
    for _ in range(4):
        answer(live, 16, reward=0.1)
    until(lambda: live.state().merge_version != bad)
    assert live.state().merge_version == good.merge_version
    assert any("below those of the last good blends" in alarm.text for alarm in live.state().alarms)


def test_an_operator_pins_unpins_and_rolls_back(live: Service) -> None:
    first = live.state()
    version = live.pin(np.eye(K)[3])
    assert live.state().pinned
    live.submit(TEXTS[:2]).result(30)
    live.end_slot()
    assert live.state().merge_version == version  # the router is not asked
    assert live.slots(1)[0].note == "pinned"
    live.unpin()
    live.end_slot()
    later = live.state().merge_version
    assert later > version
    assert live.rollback() == version  # still in the spare buffer
    assert live.rollback(first.merge_version) == first.merge_version
    np.testing.assert_array_equal(live.state().blend, first.blend)
    for wrong, said in ((lambda: live.rollback(99), "not kept"), (lambda: live.pin(99), "not kept")):
        with pytest.raises(InputError, match=said):
            wrong()
    with pytest.raises(InputError, match="blend"):
        live.pin([0.5, 0.6])
    assert live.pin(first.merge_version) == first.merge_version


def test_a_pin_holds_where_a_rollback_fails(live: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    live.end_slot()
    version = live.pin(np.eye(K)[3])
    with monkeypatch.context() as patched:
        patched.setattr(live.engine, "prepare", Mock(side_effect=OSError("the disk is gone")))
        with pytest.raises(ServiceError, match=f"merge version {version} goes on"):
            live.rollback(1)
    assert live.state().pinned
    live.end_slot()
    assert live.state().merge_version == version
    live.rollback(1)
    assert not live.state().pinned


def test_what_could_not_start_binds_nobody_and_harms_no_state(run: Run, tmp_path: Path, taught: Path) -> None:
    other = tanbr.open(tanbr.embedded(), method="ties")
    with pytest.raises(ConfigError, match="a panel holds"):
        Service(other, tasks=tiny.TASKS, config=ServeConfig(models=200), state=tmp_path)
    live = run(router=None)
    slot = live.end_slot()
    live.stop()
    with pytest.raises(ConfigError, match="a panel holds"):
        service(tmp_path, taught, models=200)
    again = service(tmp_path, taught)
    assert again.state().slot == slot
    again.stop()


def test_a_full_queue_says_when_to_come_back_and_stopping_finishes_what_was_accepted(
    tmp_path: Path, taught: Path
) -> None:
    live = service(tmp_path, taught, queue=64)
    with pytest.raises(Stopping):
        live.submit(TEXTS[:1])
    live.start()
    accepted = []
    with pytest.raises(Overloaded) as refused:  # noqa: PT012
        while True:
            accepted.append(live.submit(TEXTS[:16]))
    assert 0 < refused.value.retry_after <= 60
    assert live.stop()
    assert all(len(future.result(0).request_ids) == 16 for future in accepted)
    with pytest.raises(Stopping):
        live.submit(TEXTS[:1])
