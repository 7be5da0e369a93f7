"""Who may hold a connection open: so many in all, so many of one client, and a doorstep for questions about health."""

from collections import Counter
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

DOORSTEP = 32  # connections beyond the most, each for one question about health

C = TypeVar("C", bound=Hashable)


@dataclass(frozen=True)
class Admission(Generic[C]):
    """Whether a connection has a place, and which other one must be closed for it."""

    seated: bool  # otherwise it stands on the doorstep
    closing: C | None


class Connections(Generic[C]):
    """The open connections. Where there is no place, one that rests (says nothing, waits for nothing) gives way."""

    def __init__(self, *, most: int, of_client: int, unlimited: Collection[str] = ()) -> None:
        """Hold at most `most` connections, `of_client` of each client but the `unlimited` ones (reverse proxies)."""
        self._most, self._of_client, self._unlimited = most, of_client, frozenset(unlimited)
        self._seated: dict[C, str] = {}  # connection → client
        self._count: Counter[str] = Counter()  # client → its connections
        self._resting: dict[C, None] = {}  # the one that has rested longest comes first
        self._doorstep: dict[C, None] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._seated)

    def admit(self, connection: C, client: str) -> Admission[C]:
        """Give a new connection a place."""
        mine = client not in self._unlimited and self._count[client] >= self._of_client
        if mine or len(self._seated) >= self._most:
            gives_way = self._to_close([one for one in self._resting if not mine or self._seated[one] == client])
            if gives_way is None:
                return Admission(False, self._stand(connection))
            self.leave(gives_way)
        else:
            gives_way = None
        self._seated[connection] = client
        self._count[client] += 1
        self._resting[connection] = None
        return Admission(True, gives_way)

    def leave(self, connection: C) -> None:
        """Forget a connection; of no effect the second time."""
        self._doorstep.pop(connection, None)
        self._resting.pop(connection, None)
        client = self._seated.pop(connection, None)
        if client is not None:
            self._count[client] -= 1
            if not self._count[client]:
                del self._count[client]

    def rest(self, connection: C) -> None:
        """Note that a connection waits for its client's next request."""
        if connection in self._seated:
            self._resting.pop(connection, None)
            self._resting[connection] = None

    def work(self, connection: C) -> None:
        """Note that something came over a connection."""
        self._resting.pop(connection, None)

    def _to_close(self, resting: list[C]) -> C | None:
        """Choose of the client that holds most the one that has rested longest."""
        return max(resting, key=lambda one: self._count[self._seated[one]], default=None)

    def _stand(self, connection: C) -> C | None:
        self._doorstep[connection] = None
        oldest = next(iter(self._doorstep))
        if len(self._doorstep) <= DOORSTEP:
            return None
        del self._doorstep[oldest]
        return oldest
