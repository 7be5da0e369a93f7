"""uvicorn's HTTP/1.1 with limits on slow clients: on connections, and on the time of heads, bodies and unread answers.

ASGI begins with a whole head, so this cannot be done there. Only callbacks of asyncio and of the parser are overridden,
and uvicorn's `send_400_response`.
"""

import asyncio
from collections import deque
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.refusals import Refusal

REFUSED_SECONDS = 1.0  # for a connection without a place to say what it wants: refused earlier, it may not read why
LARGEST_HEAD = 64 << 10  # bytes; h11 and most proxies allow as much
FULL = Refusal.later(503, "too many connections are open", seconds=1)


class BoundedProtocol(HttpToolsProtocol):
    """One connection; what is refused before there is a request is a sentence in JSON, too."""

    def __init__(
        self, *arguments: Any, limits: HttpConfig, places: "dict[BoundedProtocol, None]", **named: Any
    ) -> None:
        """Share the `places`: all open connections, that first which has waited longest for a request."""
        super().__init__(*arguments, **named)
        self._limits, self._places = limits, places
        self._in_head, self._received = True, 0  # bytes of a request that is not whole
        self._answers: deque[RequestResponseCycle] = deque()  # under way, oldest first
        self._refusal: Refusal | None = None  # of what came after them
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def _asked(self) -> bool:
        """Whether a whole request waits for its answer."""
        return any(not one.more_body for one in self._answers)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, if there is a place for it or another one, without a whole request, gives way."""
        super().connection_made(transport)
        if len(self._places) >= self._limits.connections:
            waiting = next((one for one in self._places if not one._asked), None)
            if waiting is not None:
                waiting._give_way()
        if len(self._places) < self._limits.connections:
            self._places[self] = None
        self._expect(self._limits.read_seconds if self in self._places else REFUSED_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._places.pop(self, None)
        self._hang_up()
        for timer in self._timers.values():
            timer.cancel()
        super().connection_lost(exc)

    def _give_way(self) -> None:
        """Close a connection without a whole request, for another one."""
        del self._places[self]
        if self._received:
            self._refuse(FULL)
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Read on, as long as the head is not too long."""
        if self not in self._places:
            self._refuse(FULL)
            return
        self._received += len(data)
        if "arriving" not in self._timers:
            self._expect(self._limits.read_seconds)
        super().data_received(data)
        if self._in_head and self._received > LARGEST_HEAD:
            self._refuse(Refusal(431, f"the request's line and headers have more than {LARGEST_HEAD} bytes"))

    def eof_received(self) -> None:
        """Treat a client that closes its side as gone, but say so if its request is not whole."""
        if self._received and not self._asked:
            self._refuse(Refusal(400, "the request ended before it was whole"))
        self._hang_up()

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._in_head = False
        super().on_headers_complete()
        cycle, scope = self.cycle, cast(Any, self.scope)
        scope["tanbr.left"] = lambda: cycle.disconnected  # before the whole answer was written
        self._answers.append(cycle)

    def on_message_complete(self) -> None:
        """Note that a request is whole."""
        self._in_head, self._received = True, 0
        if timer := self._timers.pop("arriving", None):
            timer.cancel()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless more is to be answered."""
        super().on_response_complete()
        self._answers.popleft()
        if self in self._places:  # it waits from now on
            self._places[self] = self._places.pop(self)
        if self._refusal is not None:
            self._refuse(self._refusal)

    def pause_writing(self) -> None:
        """Wait for a client that does not take its answer, but not for ever."""
        super().pause_writing()
        self._timers["writing"] = self.loop.call_later(self._limits.read_seconds, self._drop)

    def resume_writing(self) -> None:
        """Write on."""
        super().resume_writing()
        if timer := self._timers.pop("writing", None):
            timer.cancel()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        """Refuse what is not HTTP."""
        self._refuse(Refusal(400, "this is not a request of HTTP/1.1"))

    def _expect(self, seconds: float) -> None:
        says = f"the request took longer than {self._limits.read_seconds:g} seconds to arrive"
        self._timers["arriving"] = self.loop.call_later(seconds, lambda: self._refuse(Refusal(408, says)))

    def _drop(self) -> None:
        self._hang_up()
        self.transport.abort()

    def _hang_up(self) -> None:
        """Tell the answers under way that nobody waits, at once: uvloop's closed transports cannot be written to."""
        for cycle in self._answers:
            cycle.disconnected = True
            cycle.message_event.set()

    def _refuse(self, refusal: Refusal) -> None:
        """Refuse what is arriving and close, once whole requests before it are answered."""
        if self._asked:
            self._refusal = refusal
        elif not self.transport.is_closing():
            body = refusal.body()
            headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
            lines = [f"{name}: {value}\r\n".encode() for name, value in (headers | dict(refusal.headers or {})).items()]
            self.transport.write(b"".join([STATUS_LINE[refusal.status_code], *lines, b"\r\n", body]))
            self._hang_up()
            self.transport.close()
