"""The process: a socket, uvicorn, and an end that finishes what was accepted."""

import ipaddress
import math
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn

from tanbr.errors import ConfigError
from tanbr.serve.web.app import create_app
from tanbr.serve.web.auth import Tokens
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.metrics import Metrics
from tanbr.serve.web.protocol import BoundedProtocol, Connections

if TYPE_CHECKING:
    from tanbr.serve.service import Service

BACKLOG = 1024
ANSWERING_SHARE = 0.75  # of the time to stop, for requests that are under way; the rest is for saving


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
