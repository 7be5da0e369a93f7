"""Requests in OpenAI's form that an engine answers, and which version the conversation of each began with."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

OnEvent: TypeAlias = Callable[[dict[str, Any]], None]  # is called in another thread
TANBR = "tanbr"  # the name of whichever model is best for a request

REMEMBERED = 100_000  # conversations; the one not heard of for longest is forgotten first


@dataclass(frozen=True)
class Call:
    """A client's request in OpenAI's form."""

    path: str
    body: Mapping[str, Any]
    prompts: Sequence[Any]  # texts or tokens, as the client sent them; of a chat what is said in it, as one text
    n: int = 1  # answers to each
    on_event: OnEvent | None = None  # that gets each event of a stream; None: the answer is wanted whole
    version: int | None = None  # that the client has named …
    expert: int | None = None  # … or an expert
    name: str = TANBR  # as which the client named it
    conversation: str = ""  # that it belongs to; empty if that is not known
    begins: bool = False  # whether the conversation begins with it

    @property
    def chosen(self) -> bool:
        """Whether the model is ours to choose."""
        return self.version is None and self.expert is None


def combined(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Put the answers of several models to one request together: their choices in order, their usage summed."""
    if len(answers) < 2:
        return dict(*answers)
    choices = sorted((one for answer in answers for one in answer.get("choices", ())), key=lambda one: one["index"])
    counts: dict[str, int] = {}
    for answer in answers:
        for name, count in (answer.get("usage") or {}).items():
            if isinstance(count, int):
                counts[name] = counts.get(name, 0) + count
    return answers[0] | {"choices": choices} | ({"usage": counts} if counts else {})


class Conversations:
    """Which version each conversation began with, until it is idle for so many seconds. Thread-safe."""

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
