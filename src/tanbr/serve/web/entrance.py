"""The entrance before every route: who may pass, how often, and with how large a body. Nothing is parsed before it."""

import asyncio
import ipaddress
import re
import time
from collections import OrderedDict
from typing import Protocol

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from tanbr.serve.web import logs
from tanbr.serve.web.auth import HEALTH, Tokens
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.refusals import Refusal

REMEMBERED = 10_000  # clients; the one not heard of for longest is forgotten first
# Bytes of bodies that may be refused to one client, at once and a second. To parse and refuse a megabyte takes 5 ms or
# more of the one thread that reads for all; at this rate one address takes a few thousandths of its time.
REFUSED_BURST, REFUSED_RATE = 8 << 20, 256 << 10
HELD_BYTES = 64 << 20  # of bodies that are read but not yet answered, over all clients: 64 of the largest by default
DRAINED = 8  # times the largest body: so much of a larger one is read and dropped, so that the client sees the refusal
STOPS = Refusal.later(503, "the server stops before this is answered; send it again", seconds=1)
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
SECURE = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    ),
]


class OnRequest(Protocol):
    """Hears of every request that was answered or refused."""

    def __call__(self, *, route: str, method: str, path: str, status: int, seconds: float, client: str) -> None:
        """Take note; `route` is one of a fixed set of names."""


class RateLimit:
    """A bucket of tokens for every client: `burst` at once, refilled by `rate` a second; rate 0 sets no limit."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client → tokens, when counted

    def __len__(self) -> int:
        return len(self._buckets)

    def wait(self, client: str, now: float, *, cost: float = 1.0) -> float:
        """Take tokens of the client's, or say for how many seconds there are too few."""
        if self._rate == 0:
            return 0.0
        short = max(0.0, cost - self._left(client, now))
        if cost and not short:
            self.take(client, cost, now)
        return short / self._rate

    def take(self, client: str, cost: float, now: float) -> None:
        """Take tokens, even those that are not there: they are owed."""
        self._buckets[client] = self._left(client, now) - cost, now
        self._buckets.move_to_end(client)
        if len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)

    def _left(self, client: str, now: float) -> float:
        tokens, counted = self._buckets.get(client, (self._burst, now))
        return min(self._burst, tokens + (now - counted) * self._rate)


class Entrance:
    """An ASGI application around the one that has the routes."""

    def __init__(
        self, app: FastAPI, *, config: HttpConfig, tokens: Tokens, loopback: bool, on_request: OnRequest
    ) -> None:
        self._app, self._config, self._tokens, self._on_request = app, config, tokens, on_request
        self._rate = RateLimit(config.rate, config.burst)
        self._refused = RateLimit(REFUSED_RATE, REFUSED_BURST)  # bytes
        self._held = 0  # bytes of bodies
        self._hosts = [host.lower() for host in (*LOOPBACK, config.host, *config.hosts)] if loopback else ["*"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status, held, read = 499, 0, 0  # until something is sent: the client left
        streaming = False
        route, client = self._route(scope), client_of(address_of(scope))

        async def receive_counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            return message

        async def send_secure(message: Message) -> None:
            nonlocal status, streaming
            if message["type"] == "http.response.start":
                status = message["status"]
                streaming = "event-stream" in Headers(raw=list(message["headers"])).get("content-type", "")
                message["headers"] = [*message.get("headers", ()), *SECURE]
            await send(message)

        try:
            self._check_head(Headers(scope=scope), route, client)
            given: Receive = receive_counted
            if scope["method"] == "POST":
                self._check_refused(client)
                body = await self._body(Headers(scope=scope), receive_counted)
                if body is None:
                    return
                held = len(body)
                self._check_refused(client)  # many may have been on their way at once
                given = _once(body, receive_counted)
            await self._app(scope, given, send_secure)
        except Refusal as refusal:
            await refusal.response()(scope, receive, send_secure)
        except asyncio.CancelledError:  # uvicorn's: the time to finish what was accepted is over
            if status == 499:
                await STOPS.response()(scope, receive, send_secure)
            elif streaming:
                last = b"data: " + STOPS.body() + b"\n\ndata: [DONE]\n\n"
                await send({"type": "http.response.body", "body": last, "more_body": False})
        except Exception as error:  # with a 500, the application has answered and logged it already
            if status != 500:
                logs.say_fault(type(error).__name__, error=error)
        finally:
            self._held -= held
            if read and 400 <= status < 500 and status not in (429, 499):  # the client's own fault
                self._refused.take(client, read, time.monotonic())
            self._on_request(
                route=route or "other",
                method=scope["method"],
                path=scope["path"],
                status=status,
                seconds=time.perf_counter() - started,
                client=address_of(scope),
            )

    def _route(self, scope: Scope) -> str:
        """Find the declared path that will answer, as the router does: the raw path may begin with a root path."""
        found = [(route.matches(scope)[0].value, getattr(route, "path", "")) for route in self._app.routes]
        return max([(Match.NONE.value, ""), *found], key=lambda one: one[0])[1]  # the first, if several match as well

    def _check_refused(self, client: str) -> None:
        """Refuse a client whose refused bodies were too many bytes, before more of its bodies are read or parsed."""
        wait = self._refused.wait(client, time.monotonic(), cost=0.0)
        if wait:
            raise Refusal.later(429, "too many bytes of your last requests were refused; mend them", seconds=wait)

    def _check_head(self, headers: Headers, route: str, client: str) -> None:
        if "host" in headers and not _named(headers["host"], self._hosts):
            # Otherwise a page whose name is made to point here (DNS rebinding) could read answers in a browser.
            raise Refusal(421, "this server listens on loopback and is called localhost; see `hosts` in its settings")
        if route not in HEALTH:
            wait = self._rate.wait(client, time.monotonic())
            if wait:
                raise Refusal.later(429, f"more than {self._config.rate:g} requests a second; slow down", seconds=wait)
        self._tokens.check(route, headers.get("authorization"))

    async def _body(self, headers: Headers, receive: Receive) -> bytes | None:
        """Read the body whole, at most as much as is allowed; None when the client left."""
        limit = self._config.body_bytes
        too_large = Refusal(413, f"the body has more than {limit} bytes", headers={"connection": "close"})
        length = headers.get("content-length", "")
        if "expect" in headers and length.isascii() and length.isdigit() and int(length) > limit:
            raise too_large  # it waits to be told before it sends
        chunks: list[bytes] = []
        size = kept = 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                chunk = message.get("body", b"")
                size += len(chunk)
                if size <= limit:
                    if self._held + len(chunk) > HELD_BYTES:
                        raise Refusal.later(429, "too many large requests at once", seconds=1)
                    self._held += len(chunk)
                    kept += len(chunk)
                    chunks.append(chunk)
                elif size > DRAINED * limit:
                    raise too_large
                if not message.get("more_body", False):
                    break
            if size > limit:
                raise too_large
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if size and kind != "application/json":
                raise Refusal(415, f"send the body as application/json (got {kind[:60] or 'no content type'})")
            kept = 0  # the caller counts it out
            return b"".join(chunks)
        finally:
            self._held -= kept


def _once(body: bytes, receive: Receive) -> Receive:
    """Receive a body that was read already, then what comes after it."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_body() -> Message:
        return left.pop() if left else await receive()

    return receive_body


def _named(host: str, names: list[str]) -> bool:
    """Whether a Host header, perhaps with a port, has one of these names; *.example.com stands for a domain's."""
    host = re.sub(r":\d*$", "", host.lower())
    return any(name in ("*", host) or (name.startswith("*.") and host.endswith(name[1:])) for name in names)


def address_of(scope: Scope) -> str:
    """Give the address of a request's client."""
    client = scope.get("client")
    return str(client[0]) if client else "local"


def client_of(address: str) -> str:
    """Name the client at an address: for IPv6 its /64, since a client has as many addresses in it as it likes.

    A socket for both families sees IPv4 clients at ::ffff:a.b.c.d, all in one /64: they are told apart by a.b.c.d.
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
