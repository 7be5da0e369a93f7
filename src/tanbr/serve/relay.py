"""Requests that an engine answers as they are. Ours are the model's name, the ids and the merge version."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from tanbr.serve.panel import NOT_CHOSEN, VERSION, Live

if TYPE_CHECKING:
    from tanbr.serve.jobs import Part

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


class Passage:
    """What one model answers of a request: what goes to the engine, and what of its answer goes to the client."""

    def __init__(self, part: "Part", call: Call, live: Live, slot: int) -> None:
        """Take the model that answers."""
        self.part, self._call = part, call
        self.live = live if call.chosen else replace(live, place=NOT_CHOSEN, slot=slot)
        self.ids: Sequence[bytes] = ()
        self._ended = 0  # answers that are complete
        self.rest: dict[str, Any] = {}  # the whole answer, or the event after a stream's last choice

    @property
    def body(self) -> dict[str, Any]:
        """Give what the engine is asked."""
        call, rows, body = self._call, self.part.rows, dict(self._call.body)
        if len(rows) < len(self.part.job.texts):
            body["prompt"] = [call.prompts[row // call.n] for row in rows[:: call.n]]
        return body

    @property
    def complete(self) -> bool:
        """Whether the engine has ended all answers."""
        return self._ended == len(self.part.rows)

    def take(self, event: dict[str, Any], shown: Sequence[str]) -> None:
        """Make the engine's answer, or an event of it, our own; `shown` are the ids of the answers."""
        version = None if self.live.version < 0 else self.live.version
        for choice in event["choices"]:
            row = range(len(shown))[choice["index"]]
            choice |= {"index": self.part.rows[row], "request_id": shown[row], "merge_version": version}
            self._ended += choice["finish_reason"] is not None
        kind, name = str(event["id"]).partition("-")[0], self._call.name if version is None else f"{VERSION}{version}"
        event |= {"id": f"{kind}-{shown[0]}", "model": name, "merge_version": version}


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
