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


class RateLimit:
    """A bucket of tokens for every client: `burst` at once, refilled by `rate` a second; rate 0 sets no limit."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, float(burst)
        self.buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client → tokens, when counted

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
        self.buckets[client] = self._left(client, now) - cost, now
        self.buckets.move_to_end(client)
        if len(self.buckets) > REMEMBERED:
            self.buckets.popitem(last=False)

    def _left(self, client: str, now: float) -> float:
        tokens, counted = self.buckets.get(client, (self._burst, now))
        return min(self._burst, tokens + (now - counted) * self._rate)


@dataclass
class Visit:
    """What has become of one request so far."""

    status: int = 499  # until something is sent: the client left
    streams: bool = False
    read: int = 0  # bytes of its body …
    held: int = 0  # … and how many of them are in memory
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
        most_values: int,
        model: str,
    ) -> None:
        self._app, self._config, self._tokens, self._metrics = app, config, tokens, metrics
        self._most_values, self._model = most_values, model  # of JSON, in a body; and what answers
        self._rate = RateLimit(config.rate, config.burst)
        self._refused = RateLimit(REFUSED_RATE, REFUSED_BURST)  # bytes
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
                self._check_refused(client)
                body = await self._body(headers, receive, visit)
                if body is None:
                    return
                self._check_refused(client)  # many may have been on their way at once
                self._check_values(body)
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
            if visit.read and 400 <= visit.status < 500 and visit.status not in (429, 499):  # the client's own fault
                self._refused.take(client, visit.read, time.monotonic())
            left: Callable[[], bool] = scope.get("tanbr.left", lambda: False)
            told, status, seconds = route or "other", 499 if left() else visit.status, time.perf_counter() - started
            self._metrics.request(told, status=status, seconds=seconds)
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

    def _check_refused(self, client: str) -> None:
        """Refuse a client whose refused bodies were too many bytes, before more of its bodies are read or parsed."""
        wait = self._refused.wait(client, time.monotonic(), cost=0.0)
        if wait:
            raise Refusal.later(429, "too many bytes of your last requests were refused; mend them", seconds=wait)

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
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunk, more = message.get("body", b""), message.get("more_body", False)
            visit.read += len(chunk)
            if visit.read <= limit:
                if self._held + len(chunk) > HELD_BYTES:
                    raise Refusal.later(429, "too many large requests at once", seconds=1)
                self._held += len(chunk)
                visit.held += len(chunk)
                chunks.append(chunk)
            elif visit.read > DRAINED * limit:
                raise too_large
        if visit.read > limit:
            raise too_large
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if visit.read and kind != "application/json":
            raise Refusal(415, f"send the body as application/json (got {kind[:60] or 'no content type'})")
        return b"".join(chunks)

    def _check_values(self, body: bytes) -> None:
        """Count values before any of them is made: a megabyte may hold half a million."""
        if b"\0" in body:  # Python's parser would also read UTF-16, in which nothing can be counted
            raise Refusal(400, "the body is not JSON in UTF-8")
        if not holds_at_most(self._most_values, body):
            says = f"the body holds more than {self._most_values} values; send it in several requests"
            raise Refusal(413, says)


def holds_at_most(most: int, body: bytes) -> bool:
    """Count the strings, lists, objects and commas outside of strings, with nothing but searches through bytes."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # every quote left begins or ends a string
    if plain.count(b'"') > 4 * most:  # a key and a value for each, at most
        return False
    outside = b"".join(plain.split(b'"')[::2])
    return outside.count(b",") + outside.count(b"[") + outside.count(b"{") <= most


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
