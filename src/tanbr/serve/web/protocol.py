"""uvicorn's HTTP, with an end to all that a client could draw out: connections, heads, bodies, answers not taken."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tanbr.serve.web.auth import HEALTH
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.connections import Connections
from tanbr.serve.web.limits import client_of
from tanbr.serve.web.refusals import Refusal

LARGEST_HEAD = 64 << 10
DOORSTEP_SECONDS = 2.0  # for the question of a connection that has no place
LEAVING_SECONDS = 1.0  # for the answer to a client that has closed its side: it may listen still
HEALTH_PATHS = frozenset(path.encode() for path in HEALTH)
FULL = Refusal.later(503, "too many connections are open", seconds=1)


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Whatever is refused here, before there is a request, is a 4xx or 503 with a sentence, too."""

    limits: HttpConfig  # set by `bounded`, as is
    places: Connections["BoundedProtocol"]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._in_head, self._head, self._seated = True, 0, True
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._leaving: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None  # `cycle` is the one that was read last, perhaps ahead

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; where there is no place for it, it may still ask for the server's health."""
        super().connection_made(transport)
        admission = self.places.admit(self, client_of(self.client[0]) if self.client else "local")
        self._seated = admission.seated
        if admission.closing is not None:
            admission.closing.give_way()
        if self._seated:
            self._reading = self._later(self._too_slow)
        else:
            self._reading = self.loop.call_later(min(DOORSTEP_SECONDS, self.limits.read_seconds), self._refuse, FULL)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.places.leave(self)
        self._tell_answer()
        if self._leaving is not None:
            self._leaving.cancel()
        self._stop_reading()
        self._stop_writing()
        super().connection_lost(exc)

    def give_way(self) -> None:
        """Close a connection that rests, or stands on the doorstep, for another one."""
        if self._seated:
            self.transport.close()
        else:
            self._refuse(FULL)

    def data_received(self, data: bytes) -> None:
        """Read on, as long as the head is not too long."""
        if self.transport.is_closing():
            return
        self.places.work(self)
        if self._in_head:
            self._head += len(data)
            self._reading = self._reading or self._later(self._too_slow)
        super().data_received(data)
        if self._in_head and self._head > LARGEST_HEAD:
            self._refuse(Refusal(431, f"the request's line and headers have more than {LARGEST_HEAD} bytes"))

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer a client that has said all it will say, if that is quickly done: most of them have simply left."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = False
            self._leaving = self.loop.call_later(LEAVING_SECONDS, self._hang_up, self.transport.close)
            return True
        if self._head or (cycle is not None and not cycle.response_complete):
            self._refuse(Refusal(400, "the request ended before it was whole"))
        return False

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._in_head = False
        if not self._seated and self.url.partition(b"?")[0] not in HEALTH_PATHS:
            self.app = FULL.response()
        super().on_headers_complete()
        if self.parser.should_upgrade() or not self._seated:
            self.cycle.keep_alive = False  # nothing after an upgrade can be read as HTTP

    def on_message_complete(self) -> None:
        """Wait for the next request."""
        self._in_head, self._head = True, 0
        self._stop_reading()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Rest, unless the client has asked more already."""
        super().on_response_complete()
        if not self._head and not self.pipeline and (self.cycle is None or self.cycle.response_complete):
            self.places.rest(self)

    def pause_writing(self) -> None:
        """Wait for a client that does not take its answer, but not for ever."""
        super().pause_writing()
        self._writing = self._writing or self._later(self._drop)

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

    def _drop(self) -> None:
        self._hang_up(self.transport.abort)

    def _hang_up(self, end: Callable[[], None]) -> None:
        """Close or abort amid an answer, which must learn of it at once: a closed transport cannot be written to."""
        self._tell_answer()
        end()

    def _tell_answer(self) -> None:
        for cycle in (self._answering, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

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
    """Make the protocol with the limits of a configuration, for one server."""
    places: Connections[BoundedProtocol] = Connections(
        most=config.connections,
        of_client=config.client_connections,
        unlimited=[client_of(proxy) for proxy in config.proxies],
    )
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": config, "places": places})
