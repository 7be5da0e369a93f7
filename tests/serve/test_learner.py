"""The learner's thread: when slots end, what a failure costs, and what it must do whatever happens."""

import math
import shutil
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from serve.serving import TEXTS, K, Ledger, Run, V, answer, service, told, until
from tanbr.errors import StateError
from tanbr.lab.tasks import tiny
from tanbr.loop.guard import LEAST_COUNT
from tanbr.merge import Moe
from tanbr.monitor import Monitor
from tanbr.serve.engine import Engine
from tanbr.serve.learner import MOST_PAUSE, PATIENCE, LearnerThread
from tanbr.serve.queue import Queue
from tanbr.serve.records import Feedback, Phase, Reason, ServiceError
from tanbr.serve.service import Service

OWN = tuple(range(V))  # of the embedded model, the expert of each task


@pytest.fixture
def still(tmp_path: Path, taught: Path) -> Any:
    """A service that was never started: its learner is the test's."""
    made = service(tmp_path, taught, router=Ledger(), slot_requests=64, batch=16)
    yield made
    made.stop()


# --- without rewards nothing is explored ------------------------------------------------------------------------------


def test_without_feedback_the_start_blend_stays_and_answers_as_the_even_one_does(run: Run, moe: Moe) -> None:
    live = run(router=None, explore="careful")
    even = np.full(K, 1 / K)
    expected = Engine(moe, blend=even).logits(TEXTS[:8])
    for _ in range(6):
        np.testing.assert_array_equal(live.state().blend, even)
        np.testing.assert_allclose(live.submit(TEXTS[:8]).result(30).logits, expected, atol=1e-4)
        live.end_slot()
    assert live.state().phase is Phase.WAITING
    assert live.state().why is None
    assert {slot.reason for slot in live.slots()} == {Reason.START}
    assert live.state().merge_version == 1  # nothing was merged again


# --- feedback ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["pin", "rollback", "guard"])
def test_late_feedback_is_told_whatever_operators_and_the_guard_do(live: Service, how: str) -> None:
    late = live.submit(TEXTS[:32]).result(30).request_ids
    for _ in range(3):
        live.end_slot()  # the slot that answered is told
    assert told(live) == 0
    receipt = live.feedback([Feedback(i, reward=1.0, task="sentiment") for i in late])
    assert receipt.accepted == 32
    if how == "pin":
        live.pin(np.eye(K)[1])
    elif how == "rollback":
        live.rollback()
    else:
        version = live.state().merge_version
        live.call(lambda learning: learning.dismiss(version, "a test says so"))
    counted = LEAST_COUNT if how == "rollback" else 0  # the zeros of a worthless blend
    assert told(live) == 32 + counted
    live.end_slot()
    live.end_slot()
    assert told(live) == 32 + counted  # and once


def posterior(live: Service, text: str) -> Any:
    source: Any = live.learner.monitor
    return source.snapshot().recognise([text]).posteriors[0]


# --- one address among nine -------------------------------------------------------------------------------------------

HONEST = [f"honest {n}" for n in range(8)]


def say(live: Service, client: str, texts: Any, **said: Any) -> None:
    """Have a client ask and say something of every answer, and the learner read it and judge."""
    ids = live.submit(texts).result(30).request_ids
    assert live.feedback([Feedback(i, **said) for i in ids], client=client).accepted == len(ids)
    live.call(LearnerThread.step)


def test_a_stranger_rolls_back_no_version_in_any_slot_and_moves_a_reward_by_its_share(run: Run) -> None:
    live = run(rewards={"settle_slots": 0})
    for slot in range(9):
        if slot:
            say(live, f"stranger {slot}", TEXTS, reward=0.0, task="sentiment")
        for n, client in enumerate(HONEST):
            say(live, client, TEXTS[8 * n : 8 * n + 8], reward=0.9, task="sentiment")
        live.end_slot()
    ended = live.slots()[1:]
    assert [view.reason for view in ended] == [Reason.CHOSEN] * 9  # nothing was rolled back
    assert min(view.reward[6] for view in ended) >= 0.8 * 0.9 - 1e-9
    trusted = {view.client: view.trust for view in live.clients()}
    assert set(trusted) == {*HONEST, *(f"stranger {slot}" for slot in range(1, 9))}
    assert min(trusted[client] for client in HONEST) == 1.0 > trusted["stranger 1"]
    for n, client in enumerate(HONEST):  # the guard sleeps no more for that
        say(live, client, TEXTS[8 * n : 8 * n + 8], reward=0.1, task="sentiment")
    assert live.slots()[0].reason is Reason.ROLLED_BACK


def recognised(live: Service, rows: Any) -> float:
    """Share of texts whose task the monitor names."""
    seen = [int(posterior(live, row.text).argmax()) for row in rows]
    return float(np.mean([tiny.TASKS[best].name == row.task for best, row in zip(seen, rows, strict=True)]))


def label_of(task: str) -> Any:
    spec = tiny.BY_NAME[task]
    return spec.scale[0] if spec.graded else spec.labels[0]


@pytest.mark.parametrize("honest", [8, 0])
def test_labels_that_lie_teach_the_monitor_nothing(run: Run, honest: int) -> None:
    live = run()
    fresh = [row for task in tiny.TASKS for row in tiny.generate(task.name, 50, seed=99, split="test")]
    before = recognised(live, fresh)
    names = [task.name for task in tiny.TASKS]
    for slot in range(6):
        rows = [row for name in names for row in tiny.generate(name, 32, seed=slot, split="test")]  # 256 of them
        ids = live.submit([row.text for row in rows]).result(30).request_ids
        wrong = [names[(names.index(row.task) + 1) % V] for row in rows]
        lies = [Feedback(i, task=task, label=label_of(task)) for i, task in zip(ids, wrong, strict=True)]
        assert live.feedback(lies, client=f"liar {slot}").accepted == 256
        for client in HONEST[:honest]:
            say(live, client, [row.text for row in rows[:32]], task=rows[0].task, label=label_of(rows[0].task))
        live.end_slot()
    assert recognised(live, fresh) >= before - 0.01


def test_a_new_look_of_a_task_is_learned_from_several_clients_or_from_one_that_leads(run: Run, tmp_path: Path) -> None:
    texts = [f"zorp quux blip {n} flarn wibble" for n in range(40)]

    def learned(name: str, clients: list[str]) -> bool:
        live = run(tmp_path / name, rewards={"settle_slots": 0})
        for _ in range(5):
            for client in clients:
                say(live, client, texts, task="sentiment", label="positive")
            say(live, "liar", [f"{text} snarf" for text in texts], task="paraphrase", label=label_of("paraphrase"))
            live.end_slot()
        live.stop()
        again = run(tmp_path / name)  # it was saved with the monitor
        agreed, lie = posterior(again, texts[0]), posterior(again, f"{texts[0]} snarf")
        assert lie[2] < 0.5  # nobody else says so
        return bool(agreed[6] > 0.8)

    assert learned("several", HONEST[:3])
    assert learned("alone", ["app"] * 2)


# --- turns ------------------------------------------------------------------------------------------------------------


def test_a_turn_that_fails_keeps_the_mix_of_its_slot(live: Service) -> None:
    sentiment, duplicates = (
        [row.text for row in tiny.generate(name, 64, seed=5, split="test")] for name in ("sentiment", "duplicates")
    )
    live.submit(sentiment).result(30)
    transaction = live.store.transaction

    def full(**meta: Any) -> Any:
        if "router" in meta:
            raise ServiceError("the disk is full")
        return transaction(**meta)

    live.store.transaction = full  # type: ignore[method-assign]
    with pytest.raises(ServiceError, match="goes on"):
        live.end_slot()
    live.store.transaction = transaction  # type: ignore[method-assign]
    live.submit(duplicates[:2]).result(30)
    live.end_slot()
    estimate = live.slots(2)[1].estimate
    assert estimate is not None
    assert estimate[6] > 0.8


def test_a_bad_state_is_one_sentence(tmp_path: Path, taught: Path) -> None:
    service(tmp_path / "state", taught, router=Ledger()).stop()
    for number, (statement, values) in enumerate(
        [
            ("UPDATE models SET blend = '[1]'", ()),
            ("DELETE FROM models", ()),
            ("DROP TABLE models", ()),
            ("UPDATE slots SET mix = '{'", ()),
            ("UPDATE slots SET reason = 'boredom'", ()),
            ("UPDATE meta SET value = ? WHERE key = 'router'", (None,)),
            ("UPDATE meta SET value = '../x' WHERE key = 'monitor'", ()),
            ("UPDATE meta SET value = 'x' WHERE key = 'mark'", ()),
            ("UPDATE meta SET value = '[' WHERE key = 'made_for'", ()),
            ("UPDATE meta SET value = 99 WHERE key = 'version'", ()),
            ("UPDATE meta SET value = '[[3]]' WHERE key = 'epochs'", ()),
            ("DROP TABLE slots", ()),
        ]
    ):
        folder = shutil.copytree(tmp_path / "state", tmp_path / str(number))
        with sqlite3.connect(folder / "store.sqlite3") as connection:
            connection.execute(statement, values)
        connection.close()
        with pytest.raises((StateError, ServiceError)):
            service(folder, taught, router=Ledger())


def test_two_starts_with_other_settings_tell_every_reward_once(run: Run, tmp_path: Path, taught: Path) -> None:
    first = run(rewards={"settle_slots": 3})
    for _ in range(2):
        answer(first, 8)
        first.end_slot()
    late = first.submit(TEXTS[:8]).result(30).request_ids
    version, slot = first.state().merge_version, first.state().slot
    assert told(first) == 0
    assert first.stop()
    again = service(tmp_path, taught, router=Ledger(), rewards={"settle_slots": 0}, models=1)
    assert [one.number for one in again.learner.settling] == [slot - 2, slot - 1]
    assert (again.state().merge_version, again.state().slot) == (version, slot)
    again.start()
    again.end_slot()
    counted = told(again)
    assert counted == pytest.approx(8 + 8, abs=0.1)
    assert again.stop()
    third = run(rewards={"settle_slots": 0})
    third.feedback([Feedback(i, reward=1.0, task="sentiment") for i in late])
    third.end_slot()
    assert told(third) == pytest.approx(counted + 8)  # what that slot had earned is not told again


def test_a_pin_and_the_trust_in_clients_hold_over_a_restart(run: Run, tmp_path: Path, taught: Path) -> None:
    one = run(rewards={"settle_slots": 0})
    for _ in range(2):
        for client in HONEST[:3]:
            say(one, client, TEXTS[:8], reward=1.0, task="sentiment")
        say(one, "liar", TEXTS[:8], reward=0.0, task="sentiment")
        one.end_slot()
    version = one.pin(np.eye(K)[2])
    before = one.learner
    one.stop()
    again = service(tmp_path, taught, router=Ledger())
    after = again.learner
    assert after.trust.of("liar") == before.trust.of("liar") < 0.1
    assert after.pin is not None
    assert (after.pin.version, after.slot.versions) == (version, (version,))
    assert after.guard.to_json() == before.guard.to_json()
    for old, new in zip(before.versions, after.versions, strict=True):
        assert (old.number, old.good) == (new.number, new.good)
        for name in ("blend", "sums", "counts"):
            np.testing.assert_array_equal(getattr(old, name), getattr(new, name))
    again.stop()


# --- what fails while it is read or shown -----------------------------------------------------------------------------


def test_texts_that_cannot_be_read_do_not_blind_the_guard(live: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> Any:
        raise MemoryError("not now")

    with monkeypatch.context() as patched:
        patched.setattr(Monitor, "snapshot", broken)
        ids = live.submit(TEXTS[:8]).result(30).request_ids
        live.feedback([Feedback(i, reward=0.25, task="sentiment") for i in ids])
        version = live.state().merge_version
        until(lambda: live.learner.guard.reward(version) == 0.25)
        assert "cannot be read: MemoryError" in live.state().alarms[0].text


def test_a_router_that_does_not_explain_itself_serves_all_the_same(run: Run) -> None:
    class Silent(Ledger):
        @property
        def expected(self) -> Any:  # type: ignore[override]
            raise ValueError("no idea")

    live = run(router=Silent())
    assert live.end_slot() == 1
    assert "the router does not explain itself: ValueError" in live.state().alarms[0].text


def test_requests_unlike_any_task_are_an_alarm_once(run: Run) -> None:
    live = run()
    for slot in range(3):
        live.submit([f"⊗⊘ {n}§§ ⟦qqqqzzzz⟧ xkcdvvv{n} {slot}" for n in range(64)]).result(30)
        live.end_slot()
    assert len([one for one in live.state().alarms if one.text.startswith("drift: ")]) == 1


# --- when slots end ---------------------------------------------------------------------------------------------------


class Clock:
    """A clock that goes when told."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def timed(still: Service) -> tuple[LearnerThread, Clock]:
    """A learner that nobody runs, and its clock."""
    still.learning._clock = clock = Clock()
    still.learning._started = clock.now
    return still.learning, clock


def test_a_slot_holds_the_requests_it_should_and_at_most_a_batch_more(run: Run) -> None:
    live = run(slot_requests=64, batch=16)
    for sent in range(1, 21):  # a client that leaves the learner its time
        live.submit((TEXTS * 2)[:16]).result(30)
        until(lambda sent=sent: live.state().slot == sent * 16 // 64)  # type: ignore[misc]
    held = [slot.requests for slot in live.slots()[1:]]
    live.stop()
    assert len(held) == 5
    assert all(64 <= count <= 64 + 16 for count in held)


def flood(live: Service, requests: int = 40) -> list[Any]:
    """Send more at once than slots can turn for."""
    return [live.submit((TEXTS * 2)[:16]) for _ in range(requests)]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have requests wait for a turn as long as it takes."""
    monkeypatch.setattr("tanbr.serve.learner.PATIENCE", 3600.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("models", "pinned"), [(1, False), (1, True), (3, False)])
def test_slots_keep_their_length_at_any_load(run: Run, *, models: int, pinned: bool) -> None:
    live = run(router=None, slot_requests=64, batch=16, models=models)
    if pinned:
        live.pin(np.eye(K)[1])
    first = live.state().slot
    for one in flood(live):
        one.result(60)
    until(lambda: live.state().slot == first + 40 * 16 // 64)
    held = [slot.requests for slot in live.slots() if slot.slot >= first]
    assert max(held) <= 64 + 64 // 4
    assert sum(held) == 40 * 16


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("error", [OSError("the disk is full"), SystemExit()])
def test_nobody_waits_for_a_turn_that_fails_or_a_learner_that_died(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    live = run(slot_requests=64, batch=16)
    monkeypatch.setattr(live.learning.world, "write", Mock(side_effect=error))
    for one in flood(live):
        one.result(60)
    assert live.state().slot == 0


@pytest.mark.usefixtures("patient")
def test_nobody_waits_for_a_turn_while_the_server_stops(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    live, go_on = run(slot_requests=64, batch=16), threading.Event()
    monkeypatch.setattr(live.learning.world, "write", lambda *_: go_on.wait(60) and None)
    sent = flood(live)
    until(lambda: live.learning.room(0, 0) == (0, True))
    assert live.depth > 0  # they wait
    assert Queue.stop(live, 60)
    assert all(one.done() for one in sent)
    go_on.set()


def test_requests_wait_for_a_turn_only_so_long(still: Service) -> None:
    learning, clock = timed(still)
    held = learning.world.answers.held
    held[0, 0] = 63
    assert learning.room(0, 0) == (17, False)  # the next request is taken whatever its size
    assert learning.room(0, 11) == (6, True)
    clock.now += PATIENCE
    assert learning.room(0, 11) == (math.inf, False)
    held[0, 0] = 200
    learning.step()  # it has turned
    assert learning.room(0, 0) == learning.room(2, 0) == (math.inf, False)  # nobody waits for what is not open
    assert learning.room(1, 0) == (64, False)  # a slot may be a quarter too short, to make up for one too long


def test_a_batch_that_was_at_work_during_a_turn_shortens_the_next_slot(still: Service) -> None:
    learning, _ = timed(still)
    ended, held = learning.learner.slot.number, learning.world.answers.held
    held[ended, 0] = 64
    learning.step()
    assert (learning.learner.slot.number, learning._target) == (ended + 1, 64)
    held[ended, 0] += 16  # answered only now, by the model of the slot that has ended
    assert learning._target == 48
    assert learning.room(ended + 1, 0) == (64, False)


def test_what_fails_is_tried_again_after_growing_pauses(still: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    learning, clock = timed(still)
    turns: list[float] = []
    monkeypatch.setattr(LearnerThread, "turn", lambda _: bool(turns.append(clock.now)))
    learning.world.answers.held[0, 0] = 64  # the slot is due
    for _ in range(5 * 600):  # ten minutes, five looks a second
        learning.step()
        clock.now += 0.2
    assert 10 <= len(turns) <= 600 / MOST_PAUSE + 12
    assert np.diff(turns).max() <= MOST_PAUSE + 0.3


def test_slots_end_by_a_clock_that_nobody_sets_back(still: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    learning, clock = timed(still)
    monkeypatch.setattr(time, "time", lambda: 0.0)  # the wall clock was set back to 1970
    learning.world.answers.held[0, 0] = 1
    learning.step()
    assert still.state().slot == 0
    clock.now += 3600.0
    learning.step()
    assert still.state().slot == 1
    clock.now += 3600.0
    learning.step()
    assert still.state().slot == 1  # nobody came


def test_a_version_with_nothing_to_go_back_to_goes_on_and_that_is_said(still: Service) -> None:
    learning = still.learning
    learning.dismiss(1, "a test says so")
    assert (still.state().slot, still.state().merge_version) == (0, 1)
    assert "no earlier good version" in still.state().alarms[0].text
    learning.dismiss(99, "a version that went already")
    assert len(still.state().alarms) == 2


# --- stopping ---------------------------------------------------------------------------------------------------------


def test_a_thread_that_dies_is_a_fault(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    live = run()

    def die(*_: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(LearnerThread, "read", die)
    until(lambda: live.faults() != ())
    assert "nothing is learned any more" in live.faults()[0]
    with pytest.raises(ServiceError):
        live.end_slot()


def test_requests_do_not_wait_for_a_locked_store_where_blends_are_merged_in_place(run: Run) -> None:
    live = run(low_memory=True)
    with live.store.transaction():  # nobody else can write
        turning = threading.Thread(target=live.end_slot, daemon=True)
        turning.start()
        for _ in range(20):
            assert len(live.submit(TEXTS[:2]).result(30).request_ids) == 2
        assert live.state().slot == 0
    turning.join(30)
    assert live.state().slot == 1
    assert live.pin(np.eye(K)[1]) == 3
