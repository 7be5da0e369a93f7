"""When slots end, what a failure costs, and how long a stop takes."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serve.serving import TEXTS, K, Ledger, service, until
from tanbr.serve.learner import Learner
from tanbr.serve.queue import Queue
from tanbr.serve.records import ServiceError
from tanbr.serve.service import Service
from tanbr.serve.slot_thread import MOST_PAUSE, SlotThread


@pytest.fixture
def still(tmp_path: Path, taught: Path) -> Any:
    """A service that was never started: its learner is the test's."""
    made = service(tmp_path, taught, router=Ledger(), slot_requests=64, batch=16)
    yield made
    made.stop()


def test_a_slot_holds_the_requests_it_should_and_at_most_a_batch_more(tmp_path: Path, taught: Path) -> None:
    live = service(tmp_path, taught, router=Ledger(), slot_requests=64, batch=16)
    live.start()
    for sent in range(1, 41):  # a client that leaves the learner its time
        live.submit((TEXTS * 2)[:16]).result(30)
        until(lambda sent=sent: live.state().slot == sent * 16 // 64)  # type: ignore[misc]
    held = [slot.requests for slot in live.slots()[1:]]
    live.stop()
    assert len(held) == 10
    assert all(64 <= count <= 64 + 16 for count in held)


def test_a_burst_ends_slots_and_what_they_hold_beyond_it_is_said(tmp_path: Path, taught: Path) -> None:
    live = service(tmp_path, taught, router=Ledger(), slot_requests=64, batch=16, queue=2000)
    live.start()
    for future in [live.submit((TEXTS * 2)[:16]) for _ in range(40)]:  # 640 texts at once
        future.result(60)
    until(lambda: live.state().slot > 0)
    live.end_slot()  # by hand: after a slot that grew, the next may be longer than what is left
    slots = live.slots()
    said = [alarm.text for alarm in live.state().alarms if alarm.text.startswith("slots grow")]
    live.stop()
    assert sum(slot.requests for slot in slots) == 640
    assert all(slot.requests >= 64 for slot in slots[2:])
    grown = [slot for slot in slots[2:] if slot.requests > 64 + 16]
    assert bool(said) == bool(grown)


class Clock:
    """A clock that goes when told."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Failing:
    """A learner that cannot turn, and counts how often it was asked to."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self.turns = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    def turn(self) -> bool:
        self.turns += 1
        return False


def test_what_fails_is_tried_again_after_growing_pauses(still: Service) -> None:
    learner, clock = Failing(still.learner), Clock()
    thread = SlotThread(learner, clock=clock)  # type: ignore[arg-type]
    still.learner.answers.held[0] = 64  # the slot is due
    for _ in range(5 * 600):  # ten minutes, five looks a second
        thread.step()
        clock.now += 0.2
    assert 10 <= learner.turns <= 600 / MOST_PAUSE + 12


def test_slots_end_by_a_clock_that_nobody_sets_back(still: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    thread = SlotThread(still.learner, clock=clock)
    monkeypatch.setattr(time, "time", lambda: 0.0)  # the wall clock was set back to 1970
    still.learner.answers.held[0] = 1
    thread.step()
    assert still.state().slot == 0
    clock.now += 3600.0
    thread.step()
    assert still.state().slot == 1


def test_a_stop_gives_answers_and_saving_together_no_more_than_it_may_take(
    tmp_path: Path, taught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = service(tmp_path, taught, router=Ledger())
    live.start()
    given: list[float] = []
    stop = SlotThread.stop

    def noted(thread: SlotThread, timeout: float) -> bool:
        given.append(timeout)
        return stop(thread, timeout)

    def slow(self: Queue, timeout: float) -> bool:
        given.append(timeout)
        clock.now += timeout  # it takes all it may
        return True

    clock = Clock()
    monkeypatch.setattr(SlotThread, "stop", noted)
    monkeypatch.setattr(Queue, "stop", slow)
    monkeypatch.setattr(time, "monotonic", clock)
    live.stop(timeout=20.0)
    assert given[0] > 0 < given[1]
    assert sum(given) == pytest.approx(20.0)


def test_a_thread_that_dies_is_a_fault(tmp_path: Path, taught: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = service(tmp_path, taught, router=Ledger())
    live.start()
    assert live.faults() == ()

    def die(*_: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(live.learner, "read_safely", die)
    until(lambda: live.faults() != ())
    assert "nothing is learned any more" in live.faults()[0]
    with pytest.raises(ServiceError):
        live.end_slot()
    live.stop()


def test_whoever_asks_just_as_the_thread_ends_is_refused(still: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = SlotThread(still.learner)
    thread.start()
    send = thread._send
    said: list[str] = []

    def late(command: Any) -> Any:
        assert thread.stop(30)  # after `call` has found the thread alive
        return send(command)

    def ask() -> None:
        with pytest.raises(ServiceError) as refused:
            thread.call(lambda: None)
        said.append(str(refused.value))

    monkeypatch.setattr(thread, "_send", late)
    threading.Thread(target=ask, daemon=True).start()
    until(lambda: said == ["the server is stopping"])


def test_requests_do_not_wait_for_a_locked_store_where_blends_are_merged_in_place(tmp_path: Path, taught: Path) -> None:
    live = service(tmp_path, taught, router=Ledger(), low_memory=True)
    live.start()
    with live.store.transaction():  # nobody else can write
        turning = threading.Thread(target=live.end_slot, daemon=True)
        turning.start()
        for _ in range(20):
            assert len(live.submit(TEXTS[:2]).result(30).request_ids) == 2
        assert live.state().slot == 0
    turning.join(30)
    assert live.state().slot == 1
    assert live.pin(np.eye(K)[1]) == 3
    live.stop()
