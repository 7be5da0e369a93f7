"""The process: a socket, uvicorn, and an end that finishes what was accepted."""

import ipaddress
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING

import uvicorn

from tanbr.errors import ConfigError
from tanbr.serve.records import Observer
from tanbr.serve.web.app import create_app
from tanbr.serve.web.auth import Tokens
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.metrics import Metrics
from tanbr.serve.web.protocol import bounded
from tanbr.types import SlotRecord

if TYPE_CHECKING:  # torch comes with it, and an address that is taken should be found out without
    from tanbr.serve.service import Service

KEEP_ALIVE = 30  # seconds that a connection may rest between two requests
BACKLOG = 1024


def bind(config: HttpConfig) -> socket.socket:
    """Take the address: before the model is loaded, so that one that is taken is found out at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        taken = socket.socket(family, kind, protocol)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except OSError as error:
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {error.strerror or error}") from None
    return taken


def address_of(taken: socket.socket) -> tuple[str, bool]:
    """Give the URL of a socket, and whether only this machine reaches it."""
    host, port = taken.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}", ipaddress.ip_address(host.partition("%")[0]).is_loopback


def server(
    service: "Service", *, config: HttpConfig, tokens: Tokens, metrics: Metrics, loopback: bool
) -> uvicorn.Server:
    """Make what answers requests: `run(sockets=[…])` returns when it was told to stop and all it accepted is done."""
    app = create_app(service, config=config, tokens=tokens, metrics=metrics, loopback=loopback)
    settings = uvicorn.Config(
        app,
        http=bounded(config),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        proxy_headers=bool(config.proxies),
        forwarded_allow_ips=list(config.proxies),
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=config.stop_seconds,
    )
    return uvicorn.Server(settings)


class Observers:
    """Several observers as one."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)

    def batch(self, size: int, seconds: float) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.batch(size, seconds)

    def queue(self, depth: int) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.queue(depth)

    def merged(self, seconds: float, version: int) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.merged(seconds, version)

    def slot(self, record: SlotRecord) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.slot(record)

    def alarm(self, text: str) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.alarm(text)
