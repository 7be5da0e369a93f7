"""The process: a socket, uvicorn with limits on slow clients, and an end that finishes what was accepted.

uvicorn limits neither connections nor how long a request may take to arrive, and ASGI begins with a whole head: one
client of a server that has no proxy would hold every connection by saying nothing (`benchmarks/hostile.py`). Only
callbacks of asyncio and of the parser are overridden, and uvicorn's `send_400_response`.
"""

import asyncio
import ipaddress
import math
import socket
import time
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tanbr.errors import ConfigError
from tanbr.serve.web.app import create_app
from tanbr.serve.web.auth import Tokens
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.entrance import client_of
from tanbr.serve.web.metrics import Metrics
from tanbr.serve.web.refusals import Refusal

if TYPE_CHECKING:
    from tanbr.serve.service import Service

BACKLOG = 1024
ANSWERING_SHARE = 0.75  # of the time to stop, for requests that are under way; the rest is for saving
REFUSED_SECONDS = 1.0  # for a connection without a place to say what it wants: refused earlier, it may not read why
LARGEST_HEAD = 64 << 10  # bytes; h11 and most proxies allow as much


def bind(config: HttpConfig) -> socket.socket:
    """Take the address: before the model is loaded, so that one that is taken is found out at once.

    Only listening takes it for good: two sockets may be bound to one address, as long as neither listens.
    """
    try:
        family, *_, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        says = f"cannot listen on {config.host}:{config.port}: {error.strerror or error}"
        raise ConfigError(says) from None


def address_of(taken: socket.socket) -> tuple[str, bool]:
    """Give the URL of a socket, and whether only this machine reaches it."""
    host, port = taken.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}", ipaddress.ip_address(host.partition("%")[0]).is_loopback


class Connections:
    """The open connections. Where there is no place, one that has not sent a whole request is closed for a new one."""

    def __init__(self, config: HttpConfig) -> None:
        self.seconds = config.read_seconds  # to send a request
        self.open: dict[BoundedProtocol, None] = {}  # the one that has waited longest for a request comes first
        self._most, self._of_client = config.connections, config.client_connections
        self._unlimited = {client_of(proxy) for proxy in config.proxies}  # clients that may have all connections

    def admit(self, new: "BoundedProtocol") -> bool:
        """Give a new connection a place, if there is one or one can be made."""
        held = Counter(one.sender for one in self.open)
        crowded = new.sender not in self._unlimited and held[new.sender] >= self._of_client
        if crowded or len(self.open) >= self._most:
            waiting = [one for one in self.open if not one.whole and (not crowded or one.sender == new.sender)]
            if not waiting:
                return False
            oldest = max(waiting, key=lambda one: held[one.sender])  # of the client that has most
            del self.open[oldest]
            oldest.transport.close()
        self.open[new] = None
        return True


class BoundedProtocol(HttpToolsProtocol):
    """One connection; what is refused before there is a request is a sentence in JSON, too."""

    def __init__(self, *arguments: Any, places: Connections, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.places, self.sender = places, "local"  # the client
        self.whole = 0  # requests that have arrived and wait for an answer
        self._in_head, self._received = True, 0  # bytes of a request that is not whole
        self._answers: deque[RequestResponseCycle] = deque()  # under way, oldest first
        self._refusal: Refusal | None = None  # of what came after them
        self._arrival: asyncio.TimerHandle | None = None  # ends a request that takes too long

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, if there is a place for it."""
        super().connection_made(transport)
        self.sender = client_of(self.client[0]) if self.client else "local"
        self._expect(self.places.seconds if self.places.admit(self) else REFUSED_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.places.open.pop(self, None)
        self._hang_up()
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, as long as the head is not too long."""
        if self not in self.places.open:
            self._refuse(Refusal(503, "too many connections are open", retry=1))
            return
        self._received += len(data)
        if self._arrival is None:
            self._expect(self.places.seconds)
        super().data_received(data)
        if self._in_head and self._received > LARGEST_HEAD:
            self._refuse(Refusal(431, f"the request's line and headers have more than {LARGEST_HEAD} bytes"))

    def eof_received(self) -> None:
        """Treat a client that closes its side as gone, but say so if its request is not whole."""
        if self._received and not self.whole:
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
        self.whole += 1  # 0, if it was refused before it was whole
        self._expect_nothing()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless more is to be answered."""
        super().on_response_complete()
        self._answers.popleft()
        self.whole -= 1
        if self in self.places.open:  # it waits from now on
            self.places.open[self] = self.places.open.pop(self)
        if self._refusal is not None:
            self._refuse(self._refusal)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        """Refuse what is not HTTP."""
        self._refuse(Refusal(400, "this is not a request of HTTP/1.1"))

    def _expect(self, seconds: float) -> None:
        late = Refusal(408, f"the request took longer than {self.places.seconds:g} seconds to arrive")
        self._arrival = self.loop.call_later(seconds, self._refuse, late)

    def _expect_nothing(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    def _hang_up(self) -> None:
        """Tell the answers under way that nobody waits, at once: uvloop's closed transports cannot be written to."""
        for cycle in self._answers:
            cycle.disconnected = True
            cycle.message_event.set()

    def _refuse(self, refusal: Refusal) -> None:
        """Refuse what is arriving and close, once whole requests before it are answered."""
        if self.whole:
            self._refusal = refusal
        elif not self.transport.is_closing():
            answer = refusal.response()
            lines = [name + b": " + value + b"\r\n" for name, value in answer.raw_headers]
            head = [STATUS_LINE[refusal.status_code], *lines, b"connection: close\r\n\r\n"]
            self.transport.write(b"".join([*head, bytes(answer.body)]))
            self._hang_up()
            self.transport.close()


class Server(uvicorn.Server):
    """Answers requests: `run(sockets=[…])` returns when it was told to stop and all it accepted is done."""

    def __init__(
        self, service: "Service", *, config: HttpConfig, tokens: Tokens, metrics: Metrics, loopback: bool
    ) -> None:
        self._stop_seconds, self._ends = float(config.stop_seconds), math.inf
        app = create_app(
            service,
            config=config,
            tokens=tokens,
            metrics=metrics,
            loopback=loopback,
            seconds_to_stop=lambda: min(self._stop_seconds, max(0.0, self._ends - time.monotonic())),
        )
        protocol: Any = partial(BoundedProtocol, places=Connections(config))  # uvicorn does no more than call it
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                proxy_headers=bool(config.proxies),
                forwarded_allow_ips=list(config.proxies),
                timeout_keep_alive=config.idle_seconds,
                timeout_graceful_shutdown=int(ANSWERING_SHARE * config.stop_seconds),
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what was accepted, then end the application."""
        self._ends = time.monotonic() + self._stop_seconds
        await super().shutdown(sockets)
