"""What a replica says to the learner: plain values that could cross a process or a network."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tanbr.monitor.recogniser import Recognition
from tanbr.types import FloatArray, Text


@dataclass(frozen=True, eq=False)
class Answers:
    """Texts that one merge version answered; the learner is told before the clients are."""

    version: int
    slot: int  # that they are credited to
    ids: tuple[bytes, ...]  # (n,) raw request ids
    texts: tuple[Text, ...]
    logits: FloatArray | None  # (n, columns) of a classifier
    confidence: FloatArray  # (n,) probability of the best label, or mean probability of the tokens written
    tokens: tuple[tuple[int, ...], ...] | None  # what a model that writes has written
    place: int = 0  # of the model among those of its slot
    seen: Recognition | None = None  # what was read from the texts already, if it was
    named: FloatArray | None = None  # (n, V) 1 for the tasks that each client has named; None if nobody has


@dataclass(frozen=True)
class Broken:
    """A merge version that answers with NaN; the replica has gone back to the one before, if it still had it."""

    version: int
    slot: int


Message: TypeAlias = Answers | Broken


class Outbox(Protocol):
    """Where a replica leaves its messages; `queue.SimpleQueue` is one."""

    def put(self, message: Message, /) -> None:
        """Take a message; quick, never blocks."""
        ...
