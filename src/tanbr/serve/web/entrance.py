"""The entrance before every route: who may pass, how often, and with how large a body. Nothing is parsed before it."""

import asyncio
import ipaddress
import re
import time
from collections import OrderedDict

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from tanbr.serve import tracing
from tanbr.serve.web import logs
from tanbr.serve.web.auth import HEALTH, Token, Tokens
from tanbr.serve.web.config import MOST_FEEDBACK, HttpConfig
from tanbr.serve.web.metrics import Metrics
from tanbr.serve.web.refusals import DONE, Refusal, allows, in_stream

REMEMBERED = 10_000  # clients; the one not heard of for longest is forgotten first
# Bytes of bodies that may be refused to one client, at once and a second. To parse and refuse a megabyte takes 5 ms or
# more of the one thread that reads for all; at this rate one address takes a few thousandths of its time.
REFUSED_BURST, REFUSED_RATE = 8 << 20, 256 << 10
HELD_BYTES = 64 << 20  # of bodies that are read but not yet answered, over all clients: 64 of the largest by default
DRAINED = 8  # times the largest body: so much of a larger one is read and dropped, so that the client sees the refusal
VALUES_EACH = 8  # JSON values that one text or one piece of feedback may be written with; half of them suffice
STOPS = Refusal(503, "the server stops before this is answered; send it again", retry=1)
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
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client → tokens, when counted

    def wait(self, client: str, now: float, *, cost: float = 1.0) -> float:
        """Take tokens of the client's, or say in how many seconds there are enough; at no cost, when none is owed."""
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
        self, app: FastAPI, *, config: HttpConfig, tokens: Tokens, loopback: bool, metrics: Metrics, model: str
    ) -> None:
        self._app, self._config, self._tokens, self._metrics, self._model = app, config, tokens, metrics, model
        self._rate = RateLimit(config.rate, config.burst)
        self._refused = RateLimit(REFUSED_RATE, REFUSED_BURST)  # bytes
        self._held = 0  # bytes of bodies
        self._most_values = VALUES_EACH * max(config.inputs, MOST_FEEDBACK)
        self._hosts = [host.lower() for host in (*LOOPBACK, config.host, *config.hosts)] if loopback else ["*"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, streams, span = time.perf_counter(), 499, False, None  # 499: the client left
        route, headers, address = self._route(scope), Headers(scope=scope), address_of(scope)
        client = client_of(address)
        scope["tanbr.token"], scope["tanbr.texts"] = None, 0  # whose request it is; what was answered
        scope["tanbr.read"] = scope["tanbr.held"] = 0  # bytes of its body, and how many of them are in memory

        async def send_secure(message: Message) -> None:
            nonlocal status, streams
            if message["type"] == "http.response.start":
                status = message["status"]
                streams = "event-stream" in Headers(raw=list(message["headers"])).get("content-type", "")
                message["headers"] = [*message.get("headers", ()), *SECURE]
            await send(message)

        try:
            scope["tanbr.token"] = self._check_head(headers, route, client)
            span = tracing.begin(route, self._model, headers)
            if scope["method"] == "POST":
                self._check_refused(client)
                body = await self._body(headers, receive, scope)
                self._check_refused(client)  # many may have been on their way at once
                receive = _once(checked(body, most=self._most_values), receive)
            await self._app(scope, receive, send_secure)
        except Refusal as refusal:
            await refusal.response()(scope, receive, send_secure)
        except asyncio.CancelledError:  # uvicorn's: the time to finish what was accepted is over
            if status == 499:
                await STOPS.response()(scope, receive, send_secure)
            elif streams:
                last = in_stream(STOPS.shown) + DONE
                await send({"type": "http.response.body", "body": last, "more_body": False})
        except Exception as error:  # with a 500, the application has answered and logged it already
            if status != 500:
                logs.say_fault(type(error).__name__, error=error)
        finally:
            self._held -= scope["tanbr.held"]
            if scope["tanbr.read"] and 400 <= status < 500 and status not in (429, 499):  # the client's own fault
                self._refused.take(client, scope["tanbr.read"], time.monotonic())
            if scope.get("tanbr.left", bool)():
                status = 499
            seconds, token = time.perf_counter() - started, scope["tanbr.token"]
            self._metrics.request(route or "other", status=status, seconds=seconds, texts=scope["tanbr.texts"])
            if span is not None:
                tracing.end(span, status)
            logs.say_request(
                route=route or "other", method=scope["method"], path=scope["path"], status=status, seconds=seconds,
                client=address, **({"name": token.name} if token and token.name else {}),
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
                raise Refusal(429, says, retry=wait)
        return self._tokens.check(route, headers.get("authorization"))

    def _check_refused(self, client: str) -> None:
        """Refuse a client whose refused bodies were too many bytes, before more of its bodies are read or parsed."""
        wait = self._refused.wait(client, time.monotonic(), cost=0.0)
        if wait:
            raise Refusal(429, "too many bytes of your last requests were refused; mend them", retry=wait)

    async def _body(self, headers: Headers, receive: Receive, scope: Scope) -> bytes:
        """Read a body whole, at most as much as is allowed."""
        limit, body, more = self._config.body_bytes, bytearray(), True
        while more and scope["tanbr.read"] <= DRAINED * limit:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refusal(499, "the client left before its request was whole")
            chunk, more = message.get("body", b""), message.get("more_body", False)
            scope["tanbr.read"] += len(chunk)
            if scope["tanbr.read"] <= limit:
                if self._held + len(chunk) > HELD_BYTES:
                    raise Refusal(429, "too many large requests at once", retry=1)
                self._held += len(chunk)
                scope["tanbr.held"] += len(chunk)
                body += chunk
        if scope["tanbr.read"] > limit:
            says = f"the body has more than {limit} bytes{allows('body_bytes')}"
            raise Refusal(413, says, headers={"connection": "close"})
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if body and kind != "application/json":
            raise Refusal(415, f"send the body as application/json (got {kind[:60] or 'no content type'})")
        return bytes(body)


def checked(body: bytes, *, most: int) -> bytes:
    """Refuse a body that is no JSON in UTF-8, or that holds more values than any request may."""
    if b"\0" in body:  # Python's parser would also read UTF-16, in which no values can be counted
        raise Refusal(400, "the body is not JSON in UTF-8")
    if not holds_at_most(most, body):
        raise Refusal(413, f"the body holds more than {most} values; send it in several requests")
    return body


def holds_at_most(most: int, body: bytes) -> bool:
    """Count values before any of them is made, since a megabyte may hold half a million.

    Strings, lists, objects and commas outside of strings are counted, with nothing but searches through bytes.
    """
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
