"""What a replica answered and has not yet told the learner: sent once a second, and again until it is taken."""

import threading
from collections import deque

from tanbr.serve.messages import Answers, Message

MOST = 20_000  # requests that are kept while no learner takes them; the oldest go first


class ReportBox:
    """An outbox whose messages leave in lots; thread-safe."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._fresh: deque[Message] = deque()
        self._sent: tuple[Message, ...] = ()
        self._number = 0
        self._held = 0  # requests in both
        self.lost = 0  # requests that no learner heard of

    def put(self, message: Message) -> None:
        """Take a message; quick, never blocks."""
        with self._lock:
            self._fresh.append(message)
            self._held += _requests(message)
            while self._held > self._most and len(self._fresh) > 1:
                gone = _requests(self._fresh.popleft())
                self._held -= gone
                self.lost += gone

    def lot(self) -> tuple[int, tuple[Message, ...]]:
        """Give the lot that is under way, or if that was taken the next one, with its number."""
        with self._lock:
            if not self._sent and self._fresh:
                self._sent, self._number = tuple(self._fresh), self._number + 1
                self._fresh.clear()
            return self._number, self._sent

    def taken(self, number: int) -> None:
        """Forget the lot if the learner has it."""
        with self._lock:
            if number >= self._number:
                self._held -= sum(map(_requests, self._sent))
                self._sent = ()


def _requests(message: Message) -> int:
    return len(message.ids) if isinstance(message, Answers) else 1
