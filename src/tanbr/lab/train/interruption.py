"""Ctrl-C and SIGTERM, put off until a run has saved what it has."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Inside its context the first signal is only noted, and a second one acts as it would outside.

    A thread other than the main one gets no signals; there it notes nothing.
    """

    def __init__(self) -> None:
        self.asked = False  # whether a signal has come
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.asked = True
        self.__exit__(None, None, None)
