"""What the server remembers of the last hour for the dashboard: latencies and texts in windows of ten seconds."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

SECONDS = 10.0
WINDOWS = 360  # an hour
SAMPLED = 4096  # answers of a window that its percentiles are taken from


@dataclass(frozen=True)
class Window:
    """Ten seconds."""

    time: float  # when it began, seconds since 1970
    requests: int
    texts: int  # in these requests
    p50_ms: float  # NaN without a request
    p99_ms: float


@dataclass
class LatencyHistory:
    """The last hour's windows; one thread writes."""

    clock: Callable[[], float] = time.time
    _past: deque[Window] = field(default_factory=lambda: deque(maxlen=WINDOWS))
    _began: float = field(init=False)
    _seconds: list[float] = field(default_factory=list)
    _requests: int = 0
    _texts: int = 0

    def __post_init__(self) -> None:
        self._began = self.clock()

    def add(self, seconds: float) -> None:
        """Note one answered request."""
        self._turn()
        self._requests += 1
        if len(self._seconds) < SAMPLED:
            self._seconds.append(seconds)

    def add_texts(self, count: int) -> None:
        """Note how many texts were answered."""
        self._turn()
        self._texts += count

    def windows(self) -> list[Window]:
        """All windows, oldest first; the last is still open."""
        self._turn()
        return [*self._past, self._window()]

    def _turn(self) -> None:
        elapsed = int((self.clock() - self._began) // SECONDS)
        if elapsed <= 0:
            return
        self._past.append(self._window())
        for missed in range(max(1, elapsed - WINDOWS), elapsed):
            self._past.append(Window(self._began + missed * SECONDS, 0, 0, float("nan"), float("nan")))
        self._began += elapsed * SECONDS
        self._seconds, self._requests, self._texts = [], 0, 0

    def _window(self) -> Window:
        p50, p99 = np.percentile(self._seconds, [50, 99]) * 1e3 if self._seconds else (np.nan, np.nan)
        return Window(self._began, self._requests, self._texts, float(p50), float(p99))
