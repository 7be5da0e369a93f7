"""A conversation stays with the merge version that it began with, so that a swap does not change its voice."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

REMEMBERED = 100_000  # conversations; the one not heard of for longest is forgotten first


class Conversations:
    """Which version each conversation has, until it is idle for so many seconds. Thread-safe."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock, self._lock = seconds, clock, threading.Lock()
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()  # key → version, and when it was last heard of

    def version(self, key: str) -> int | None:
        """Find the version of a conversation that is not over."""
        with self._lock:
            version, heard = self._known.get(key, (None, 0.0))
            return version if self._clock() - heard < self._seconds else None

    def note(self, key: str, version: int) -> None:
        """Note which version answers it now."""
        with self._lock:
            self._known[key] = version, self._clock()
            self._known.move_to_end(key)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
