"""uvicorn's HTTP, with an end to everything that a client could draw out: heads, slow bodies, answers not taken."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.refusals import Refusal

LARGEST_HEAD = 64 << 10


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Whatever is refused here, before there is a request, is a 4xx or 503 with a sentence, too."""

    limits: HttpConfig  # set by `bounded`

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._in_head, self._head = True, 0
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, if there is room for it."""
        super().connection_made(transport)
        self._reading = self._later(self._too_slow)
        if len(self.connections) > self.limits.connections:
            self._refuse(Refusal.later(503, "too many connections are open", seconds=1))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_reading()
        self._stop_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, as long as the head is not too long."""
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head += len(data)
            self._reading = self._reading or self._later(self._too_slow)
        super().data_received(data)
        if self._in_head and self._head > LARGEST_HEAD:
            self._refuse(Refusal(431, f"the request's line and headers have more than {LARGEST_HEAD} bytes"))

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer a client that has said all it will say; whether the connection stays open for that."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = False
            return True
        if self._head or (cycle is not None and not cycle.response_complete):
            self._refuse(Refusal(400, "the request ended before it was whole"))
        return False

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._in_head = False
        super().on_headers_complete()
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False  # nothing after it can be read as HTTP

    def on_message_complete(self) -> None:
        """Wait for the next request."""
        self._in_head, self._head = True, 0
        self._stop_reading()
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Wait for a client that does not take its answer, but not for ever."""
        super().pause_writing()
        self._writing = self._writing or self._later(self.transport.abort)

    def resume_writing(self) -> None:
        """Go on."""
        super().resume_writing()
        self._stop_writing()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        """Refuse what is not HTTP."""
        self._refuse(Refusal(400, "this is not a request of HTTP/1.1"))

    def _unsupported_upgrade_warning(self) -> None:
        """Answer it as HTTP; nobody needs to know."""

    def _too_slow(self) -> None:
        self._reading = None
        self._refuse(Refusal(408, f"the request took longer than {self.limits.read_seconds:g} seconds to arrive"))

    def _refuse(self, refusal: Refusal) -> None:
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body or cycle.response_started:  # it is being answered: finish that, then close
                cycle.keep_alive = False
                self.flow.pause_reading()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        body = refusal.body()
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        lines = [f"{name}: {value}\r\n".encode() for name, value in (headers | dict(refusal.headers or {})).items()]
        self.transport.write(b"".join([STATUS_LINE[refusal.status_code], *lines, b"\r\n", body]))
        self.transport.close()

    def _later(self, act: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(self.limits.read_seconds, act)

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None


def bounded(config: HttpConfig) -> type[BoundedProtocol]:
    """Make the protocol with the limits of a configuration."""
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": config})
