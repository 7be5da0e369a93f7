"""Threads that step back."""

import os
import sys
import threading

import pytest

from tanbr.serve.config import NICE, step_back


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives threads priorities of their own")
def test_a_thread_that_steps_back_leaves_the_others_as_they_were() -> None:
    found = []

    def work() -> None:
        step_back()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [min(before + NICE, 19)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
