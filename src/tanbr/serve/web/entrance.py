"""The entrance before every route: who may pass, how often, and with how large a body. Nothing is parsed before it."""

import asyncio
import ipaddress
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from tanbr.serve import tracing
from tanbr.serve.web import logs
from tanbr.serve.web.auth import HEALTH, Token, Tokens
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.metrics import Metrics
from tanbr.serve.web.refusals import Refusal, allows

REMEMBERED = 10_000  # clients; the one not heard of for longest is forgotten first
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


class RateLimit:
    """A bucket of tokens for every client: `burst` at once, refilled by `rate` a second; rate 0 sets no limit."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, float(burst)
        self.buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client → tokens, when counted

    def wait(self, client: str, now: float) -> float:
        """Take a token of the client's, or say for how many seconds there is none."""
        if self._rate == 0:
            return 0.0
        tokens, counted = self.buckets.get(client, (self._burst, now))
        tokens = min(self._burst, tokens + (now - counted) * self._rate)
        if tokens < 1:
            return (1 - tokens) / self._rate
        self.buckets[client] = tokens - 1, now
        self.buckets.move_to_end(client)
        if len(self.buckets) > REMEMBERED:
            self.buckets.popitem(last=False)
        return 0.0


@dataclass
class Visit:
    """What has become of one request so far."""

    status: int = 499  # until something is sent: the client left
    streams: bool = False
    held: int = 0  # bytes of its body
    name: str = ""  # of the client, by its token
    span: tracing.Span | None = None  # if requests are traced


class Entrance:
    """An ASGI application around the one that has the routes."""

    def __init__(
        self,
        app: FastAPI,
        *,
        config: HttpConfig,
        tokens: Tokens,
        loopback: bool,
        metrics: Metrics,
        model: str,
    ) -> None:
        """Take the application, and the name of the `model` that answers there."""
        self._app, self._config, self._tokens, self._metrics, self._model = app, config, tokens, metrics, model
        self._rate = RateLimit(config.rate, config.burst)
        self._held = 0  # bytes of bodies
        self._hosts = [host.lower() for host in (*LOOPBACK, config.host, *config.hosts)] if loopback else ["*"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, visit = time.perf_counter(), Visit()
        route, address = self._route(scope), address_of(scope)
        client = client_of(address)

        async def send_secure(message: Message) -> None:
            if message["type"] == "http.response.start":
                visit.status = message["status"]
                visit.streams = "event-stream" in Headers(raw=list(message["headers"])).get("content-type", "")
                message["headers"] = [*message.get("headers", ()), *SECURE]
            await send(message)

        try:
            headers = Headers(scope=scope)
            token = scope["tanbr.token"] = self._check_head(headers, route, client)
            visit.name = "" if token is None else token.name
            visit.span = tracing.begin(route, self._model, headers)
            if scope["method"] == "POST":
                body = await self._body(headers, receive, visit)
                if body is None:
                    return
                receive = _once(body, receive)
            await self._app(scope, receive, send_secure)
        except Refusal as refusal:
            await refusal.response()(scope, receive, send_secure)
        except asyncio.CancelledError:  # uvicorn's: the time to finish what was accepted is over
            if visit.status == 499:
                await STOPS.response()(scope, receive, send_secure)
            elif visit.streams:
                last = STOPS.event() + b"data: [DONE]\n\n"
                await send({"type": "http.response.body", "body": last, "more_body": False})
        except Exception as error:  # with a 500, the application has answered and logged it already
            if visit.status != 500:
                logs.say_fault(type(error).__name__, error=error)
        finally:
            self._held -= visit.held
            left: Callable[[], bool] = scope.get("tanbr.left", lambda: False)
            told, status, seconds = route or "other", 499 if left() else visit.status, time.perf_counter() - started
            self._metrics.request(told, status=status, seconds=seconds, texts=scope.get("tanbr.texts", 0))
            if visit.span is not None:
                tracing.end(visit.span, status)
            logs.say_request(
                route=told, method=scope["method"], path=scope["path"], status=status, seconds=seconds, client=address,
                **({"name": visit.name} if visit.name else {}),
            )  # fmt: skip

    def _route(self, scope: Scope) -> str:
        """Find the declared path that will answer, as the router does: the raw path may begin with a root path."""
        found = [(route.matches(scope)[0].value, getattr(route, "path", "")) for route in self._app.routes]
        return max([(Match.NONE.value, ""), *found], key=lambda one: one[0])[1]  # the first, if several match as well

    def _check_head(self, headers: Headers, route: str, client: str) -> Token | None:
        if "host" in headers and not _named(headers["host"], self._hosts):
            # Otherwise a page whose name is made to point here (DNS rebinding) could read answers in a browser.
            raise Refusal(421, "this server listens on loopback and is called localhost; see `hosts` in its settings")
        if route not in HEALTH:
            wait = self._rate.wait(client, time.monotonic())
            if wait:
                says = f"more than {self._config.rate:g} requests a second; slow down{allows('rate')}"
                raise Refusal.later(429, says, seconds=wait)
        return self._tokens.check(route, headers.get("authorization"))

    async def _body(self, headers: Headers, receive: Receive, visit: Visit) -> bytes | None:
        """Read the body whole, at most as much as is allowed; None when the client left."""
        limit = self._config.body_bytes
        says = f"the body has more than {limit} bytes{allows('body_bytes')}"
        too_large = Refusal(413, says, headers={"connection": "close"})
        chunks: list[bytes] = []
        read, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunk, more = message.get("body", b""), message.get("more_body", False)
            read += len(chunk)
            if read <= limit:
                if self._held + len(chunk) > HELD_BYTES:
                    raise Refusal.later(429, "too many large requests at once", seconds=1)
                self._held += len(chunk)
                visit.held += len(chunk)
                chunks.append(chunk)
            elif read > DRAINED * limit:
                raise too_large
        if read > limit:
            raise too_large
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if read and kind != "application/json":
            raise Refusal(415, f"send the body as application/json (got {kind[:60] or 'no content type'})")
        return b"".join(chunks)


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
