"""The first signal is noted, the second acts; outside nothing is changed."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from tanbr.lab.train.interruption import Interruption


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C interrupts this process, even if its parent ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_the_first_signal_is_noted_and_the_second_acts() -> None:
    with Interruption() as interruption:
        assert not interruption.asked
        send(signal.SIGINT)
        assert interruption.asked
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_are_as_before_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interruption():
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] != before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_thread_that_gets_no_signals_notes_none() -> None:
    seen: list[bool] = []

    def work() -> None:
        with Interruption() as interruption:
            seen.append(interruption.asked)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
