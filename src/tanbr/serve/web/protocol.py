"""uvicorn's HTTP/1.1 with limits on slow clients: on connections, and on the time of heads, bodies and unread answers.

ASGI begins with a whole head, so this cannot be done there. Only callbacks of asyncio and of the parser are overridden,
and uvicorn's `send_400_response`.
"""

import asyncio
from collections import Counter, deque
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.entrance import client_of
from tanbr.serve.web.refusals import Refusal

REFUSED_SECONDS = 1.0  # for a connection without a place to say what it wants: refused earlier, it may not read why
LARGEST_HEAD = 64 << 10  # bytes; h11 and most proxies allow as much
FULL = Refusal.later(503, "too many connections are open", seconds=1)


class Connections:
    """The open connections. Where there is no place, one that has not sent a whole request gives way."""

    def __init__(self, config: HttpConfig) -> None:
        self.seconds = config.read_seconds  # to send a request, and to take an answer
        self.open: dict[BoundedProtocol, None] = {}  # the one that has waited longest for a request comes first
        self._most, self._of_client = config.connections, config.client_connections
        self._unlimited = {client_of(proxy) for proxy in config.proxies}  # clients that may have all connections

    def admit(self, new: "BoundedProtocol") -> bool:
        """Give a new connection a place, if there is one or one can be made."""
        held = Counter(one.sender for one in self.open)
        crowded = new.sender not in self._unlimited and held[new.sender] >= self._of_client
        if crowded or len(self.open) >= self._most:
            waiting = [one for one in self.open if not one.waiting and (not crowded or one.sender == new.sender)]
            if not waiting:
                return False
            max(waiting, key=lambda one: held[one.sender]).give_way()  # the oldest of the client that has most
        self.open[new] = None
        return True


class BoundedProtocol(HttpToolsProtocol):
    """One connection; what is refused before there is a request is a sentence in JSON, too."""

    def __init__(self, *arguments: Any, places: Connections, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.places, self.sender = places, "local"  # the client
        self._in_head, self._received = True, 0  # bytes of a request that is not whole
        self.waiting = 0  # whole requests that wait for an answer
        self._answers: deque[RequestResponseCycle] = deque()  # under way, oldest first
        self._refusal: Refusal | None = None  # of what came after them
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, if there is a place for it."""
        super().connection_made(transport)
        self.sender = client_of(self.client[0]) if self.client else "local"
        self._expect(self.places.seconds if self.places.admit(self) else REFUSED_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.places.open.pop(self, None)
        self._hang_up()
        for timer in self._timers.values():
            timer.cancel()
        super().connection_lost(exc)

    def give_way(self) -> None:
        """Close a connection without a whole request, for another one."""
        del self.places.open[self]
        if self._received:
            self._refuse(FULL)
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Read on, as long as the head is not too long."""
        if self not in self.places.open:
            self._refuse(FULL)
            return
        self._received += len(data)
        if "arriving" not in self._timers:
            self._expect(self.places.seconds)
        super().data_received(data)
        if self._in_head and self._received > LARGEST_HEAD:
            self._refuse(Refusal(431, f"the request's line and headers have more than {LARGEST_HEAD} bytes"))

    def eof_received(self) -> None:
        """Treat a client that closes its side as gone, but say so if its request is not whole."""
        if self._received and not self.waiting:
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
        self.waiting += 1  # 0, if it was refused before it was whole
        if timer := self._timers.pop("arriving", None):
            timer.cancel()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless more is to be answered."""
        super().on_response_complete()
        self._answers.popleft()
        self.waiting -= 1
        if self in self.places.open:  # it waits from now on
            self.places.open[self] = self.places.open.pop(self)
        if self._refusal is not None:
            self._refuse(self._refusal)

    def pause_writing(self) -> None:
        """Wait for a client that does not take its answer, but not for ever."""
        super().pause_writing()
        self._timers["writing"] = self.loop.call_later(self.places.seconds, self._drop)

    def resume_writing(self) -> None:
        """Write on."""
        super().resume_writing()
        if timer := self._timers.pop("writing", None):
            timer.cancel()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        """Refuse what is not HTTP."""
        self._refuse(Refusal(400, "this is not a request of HTTP/1.1"))

    def _expect(self, seconds: float) -> None:
        says = f"the request took longer than {self.places.seconds:g} seconds to arrive"
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
        if self.waiting:
            self._refusal = refusal
        elif not self.transport.is_closing():
            body = refusal.body()
            headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
            lines = [f"{name}: {value}\r\n".encode() for name, value in (headers | dict(refusal.headers or {})).items()]
            self.transport.write(b"".join([STATUS_LINE[refusal.status_code], *lines, b"\r\n", body]))
            self._hang_up()
            self.transport.close()
