"""A light HTTP client: the machine's cores belong to the server."""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tanbr.types import Text


class Connection:
    """One kept-alive connection; requests are built before the clock runs."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """Send a request as it is; status and body."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head[9:12])
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            return status, await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            raise

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            with contextlib.suppress(RuntimeError):
                self._streams[1].close()
            self._streams = None


def request(method: str, path: str, body: Any = None, *, token: str = "") -> bytes:
    """Build a request."""
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", f"content-length: {len(data)}"]
    lines += ["content-type: application/json"] if data else []
    lines += [f"authorization: Bearer {token}"] if token else []
    return "\r\n".join([*lines, "", ""]).encode() + data


def classify(texts: Sequence[Text]) -> bytes:
    """Build a request to classify texts."""
    return request("POST", "/v1/classify", {"inputs": texts})


def ask(port: int, method: str, path: str, body: Any = None, *, token: str = "") -> tuple[int, Any]:
    """Make one request, for itself; status and decoded body."""

    async def once() -> tuple[int, Any]:
        connection = Connection(port)
        try:
            status, data = await connection.send(request(method, path, body, token=token))
        finally:
            connection.close()
        return status, json.loads(data) if data[:1] in (b"{", b"[") else data

    return asyncio.run(once())


@dataclass
class Load:
    """What a load found."""

    seconds: list[float] = field(default_factory=list)  # of each answered request
    failed: list[str] = field(default_factory=list)
    versions: set[int] = field(default_factory=set)
    took: float = 0.0
    ended: list[float] = field(default_factory=list)  # when each was answered

    def steady(self, skip: int) -> float:
        """Requests a second without the first and the last few, while not all connections were busy."""
        return (len(self.ended) - 2 * skip) / (self.ended[len(self.ended) - 1 - skip] - self.ended[skip - 1])

    def quantile(self, q: float) -> float:
        """Latency quantile in seconds."""
        return float(np.quantile(self.seconds, q))


def after(count: int) -> Callable[[Load], bool]:
    """Enough when so many requests were sent."""
    sent = itertools.count()
    return lambda _: next(sent) >= count


def at(instant: float) -> Callable[[Load], bool]:
    """Enough at an instant of `time.perf_counter`."""
    return lambda _: time.perf_counter() > instant


async def drive(
    port: int,
    requests: Iterator[bytes],
    *,
    connections: int,
    until: Callable[[Load], bool],
    rate: float | None = None,
    look: Callable[[bytes], None] | None = None,
) -> Load:
    """Keep so many connections busy until it is enough; with `rate`, requests start at that pace (open loop)."""
    load = Load()
    started = time.perf_counter()
    pace = iter(range(10**9))

    async def one() -> None:
        connection = Connection(port)
        while not until(load):
            if rate is not None:
                due = started + next(pace) / rate
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            body = next(requests)
            sent = time.perf_counter() if rate is None else max(due, started)
            try:
                status, data = await connection.send(body)
            except (OSError, asyncio.IncompleteReadError) as error:
                load.failed.append(type(error).__name__)
                continue
            if status != 200:
                load.failed.append(f"{status}: {data[:200]!r}")
                continue
            load.ended.append(time.perf_counter())
            load.seconds.append(load.ended[-1] - sent)
            if look is not None:
                look(data)
        connection.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    load.took = time.perf_counter() - started
    return load
