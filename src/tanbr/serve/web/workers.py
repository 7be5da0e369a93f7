"""Threads that wait for the service, some for each kind of work: feedback that is stuck holds up nobody else."""

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from tanbr.serve.web.refusals import Refusal

T = TypeVar("T")


class Workers:
    """At most `threads` at work and `waiting` in line; beyond that work is refused, and may be sent again."""

    def __init__(self, what: str, *, threads: int, waiting: int) -> None:
        self._what, self._most, self._inside = what, threads + waiting, 0
        self._limiter = CapacityLimiter(threads)

    async def run(self, work: Callable[[], T]) -> T:
        """Do the work in a thread."""
        if self._inside >= self._most:
            raise Refusal.later(503, f"too much {self._what} is waiting already", seconds=1)
        self._inside += 1
        try:
            return await to_thread.run_sync(work, limiter=self._limiter)
        finally:
            self._inside -= 1
