"""HTTP to an engine, from one thread, so that any number of other threads may wait for answers.

The engine is not trusted: what it sends is limited in time and size, is never decompressed, and is logged without our
own secrets.
"""

import asyncio
import base64
import json
import ssl
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from uvicorn.loops.auto import auto_loop_factory

from tanbr.errors import ConfigError
from tanbr.serve.records import ServiceError

Result = TypeVar("Result")
TRACED: ContextVar[Mapping[str, str] | None] = ContextVar("TRACED", default=None)  # headers of a request's span

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 2.0  # before an unused connection is closed: engines close after 5 s
ANSWER_SECONDS = 30.0  # for questions about the engine itself, which wait for a step of the model
LOAD_SECONDS = 120.0  # for running answers to end before a load: clients wait 30 s for an answer by default
LOAD_RATE = 100e6  # bytes of weights per second that the slowest disk delivers
END_SECONDS = 1.0  # for a stream to close after its [DONE]; its connection can then be used again
ANSWER_BYTES = 16 << 20  # of one answer: ten thousand tokens with their probabilities take 5 MB
LINE_BYTES = 1 << 20  # of one event: a token takes less than a thousand bytes; and of an answer's head
SECRET_LENGTH = 8  # secrets of fewer characters are not struck out of what the engine says: they may be plain words


class EngineError(ServiceError):
    """The engine did not do what it was asked; `status` and `body` are its HTTP answer, and `said` its message."""

    def __init__(self, sentence: str, *, status: int | None = None, said: str = "", body: str = "") -> None:
        super().__init__(sentence)
        self.status, self.said, self.body = status, said, body


class EngineLost(EngineError):  # noqa: N818 - a state of affairs
    """The engine cannot be reached, has failed, or holds other weights than it was given."""


class EngineRefused(EngineError):  # noqa: N818 - a verdict
    """The engine answers, and refuses what it was asked."""


class _Line(asyncio.Protocol):
    """An open connection of HTTP/1.1, for one request at a time; httptools reads what comes.

    With httpx2 this was the largest part of the processor time that tanbr adds to a request.
    """

    _transport: asyncio.Transport
    _parser: Any = None  # of the answer under way

    def __init__(self) -> None:
        self._news, self._parts, self._size = asyncio.Event(), list[bytes](), 0  # of the head, or of parts not taken
        self.closed, self.since = False, 0.0  # when the last answer ended

    async def ask(self, request: bytes) -> None:
        """Send a request, and read the head of its answer; afterwards `parts` gives its body."""
        self._parser, self._size, self.headers = HttpResponseParser(self), 0, dict[bytes, bytes]()
        self.status, self.whole, self._stays = 0, False, False
        self._transport.write(request)
        while not self.status:
            await self._more()

    async def parts(self) -> AsyncGenerator[bytes]:
        """Give the body as it comes."""
        while self._parts or not self.whole:
            if not self._parts:
                await self._more()
                continue
            part, self._parts, self._size = b"".join(self._parts), [], 0
            self._transport.resume_reading()
            yield part

    async def _more(self) -> None:
        if self.closed:
            raise ConnectionError("it closed the connection, or does not speak HTTP/1.1")
        self._news.clear()
        await self._news.wait()

    def rest(self) -> bool:
        """Wait for another request; False if it can have none, and is closed."""
        if self.closed or not self.whole or self._parts or not self._stays:
            self.close()
        self._parser, self.since = None, time.monotonic()
        return not self.closed

    def close(self) -> None:
        """Close it at once."""
        self.closed = True
        self._transport.abort()

    # what asyncio and httptools call

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.closed = True
        self._news.set()

    def data_received(self, data: bytes) -> None:
        self._size += len(data)
        try:
            self._parser.feed_data(data)
        except (AttributeError, HttpParserError, HttpParserUpgrade):  # an answer that nobody has asked for, or none
            self.close()
        if self._size > LINE_BYTES:
            self._transport.pause_reading()
            self.closed |= not self.status
        self._news.set()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self.status:
            raise ValueError("there is one answer to a request")
        self.status = self._parser.get_status_code()

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        self.whole, self._stays = True, self._parser.should_keep_alive()  # which is forgotten after this


class Connection:
    """An engine's address, and the thread that talks to it."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        try:
            address = urlsplit(url)
            self._host, self._prefix = (address.hostname or "").encode("idna").decode(), address.path.rstrip("/")
            if address.scheme not in ("http", "https") or not self._host:
                raise ValueError("it has no host, or another scheme")
            place = address.netloc.rpartition("@")[2]
            self.url = urlunsplit((address.scheme, place, self._prefix, "", ""))
            self._ssl = ssl.create_default_context() if address.scheme == "https" else None
            self._port = address.port or (443 if self._ssl else 80)
            user = f"{unquote(address.username or '')}:{unquote(address.password or '')}" if address.username else ""
            basic = base64.b64encode(user.encode()).decode()
            key = f"Basic {basic}" if user else token and f"Bearer {token}"
            self._headers = (
                f" HTTP/1.1\r\nhost: {place}\r\naccept-encoding: identity\r\ncontent-type: application/json\r\n"
            )
            self._headers += f"authorization: {key}\r\n" if key else ""
            if not f"{place}{self._prefix}{key}".isascii() or not f"{place}{self._prefix}{key}".isprintable():
                raise ValueError("it, or the engine's token, has other characters than a header may have")
        except ValueError as error:
            raise ConfigError(f"an engine's URL must be like http://127.0.0.1:8000 (got {url!r}: {error})") from None
        secrets = (token or "", unquote(address.password or ""), basic)
        self._secrets = [one for one in secrets if len(one) >= SECRET_LENGTH]
        self._idle: list[_Line] = []  # connections for the next request
        self._loop = auto_loop_factory()()
        thread = threading.Thread(target=self._loop.run_forever, name="tanbr-engine", daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _close, self._loop, self._idle, thread)

    def close(self) -> None:
        """End the thread; those who wait for it get an error."""
        self._end()

    def start(self, work: "Coroutine[Any, Any, Result]") -> "Future[Result]":
        """Run a coroutine in the thread; cancelling the future ends it."""
        if not self._end.alive:  # nobody would ever run it
            work.close()
            raise EngineLost(f"the connection to {self.url} was closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: "Coroutine[Any, Any, Result]") -> Result:
        """Run a coroutine in the thread, and wait for it."""
        try:
            return self.start(work).result()
        except CancelledError:
            raise EngineLost(f"the connection to {self.url} was closed") from None

    async def ask(self, method: str, path: str, body: Any = None, *, seconds: float | None = ANSWER_SECONDS) -> Any:
        """Send JSON, and read JSON; None for an empty answer."""
        said = await self.text(method, path, body, seconds=seconds)
        return self._json(said, path) if said else None

    async def text(self, method: str, path: str, body: Any = None, *, seconds: float | None = ANSWER_SECONDS) -> str:
        """Send JSON, and read text."""
        async with self._answer(method, path, body, seconds) as line:
            return await self._read(line)

    async def events(self, path: str, body: Any) -> AsyncGenerator[Any]:
        """Send JSON, and read the events of a stream as they come; what is asked for whole is one event.

        There is no time limit: the reader gives up.
        """
        if not body.get("stream"):
            yield await self.ask("POST", path, body, seconds=None)
            return
        async with self._answer("POST", path, body, None) as line:
            rest = b""  # of a line that is not yet complete
            async for part in line.parts():
                *lines, rest = (rest + part).split(b"\n")
                if len(rest) > LINE_BYTES:
                    raise EngineLost(f"the engine at {self.url} streams a line of more than {LINE_BYTES} bytes")
                for one in lines:
                    if (data := one.removeprefix(b"data:").strip()) == b"[DONE]":
                        with suppress(TimeoutError, ConnectionError):
                            async with asyncio.timeout(END_SECONDS):
                                await self._read(line)
                        return
                    if one.startswith(b"data:"):
                        yield self._json(self._without_secrets(data), path)

    @asynccontextmanager
    async def _answer(self, method: str, path: str, body: Any, seconds: float | None) -> AsyncGenerator[_Line]:
        """Ask; give an answer with status 200, not yet read."""
        line: _Line | None = None
        try:
            async with asyncio.timeout(seconds):
                line = await self._sent(method, path, body)
                if b"content-encoding" in line.headers:  # a few bytes could become gigabytes
                    raise EngineLost(f"{self.url}{path} is compressed, and was not to be; is an engine there?")
                if line.status != 200:
                    said = _message(body := await self._read(line))
                    kind = EngineRefused if line.status < 500 else EngineLost
                    sentence = f"the engine answers {path} with {line.status}: {said}"
                    raise kind(sentence, status=line.status, said=said, body=body)
                yield line
        except TimeoutError:
            raise EngineLost(f"the engine at {self.url} did not answer {path} in time") from None
        except OSError as error:
            said = self._without_secrets(str(error).encode())
            raise EngineLost(f"no engine answers at {self.url} ({said}); start it there") from None
        finally:
            if line is not None and line.rest():
                self._idle.append(line)

    async def _sent(self, method: str, path: str, body: Any) -> _Line:
        """Send a request; once more, over a new connection, if the one that was kept closes without an answer.

        llama-server and vLLM close a connection after five idle seconds, perhaps just as we send.
        """
        content = b"" if body is None else json.dumps(body).encode()
        more = "".join(f"{name}: {value}\r\n" for name, value in (TRACED.get() or {}).items())
        head = f"{method} {self._prefix}{path}{self._headers}{more}content-length: {len(content)}\r\n\r\n"
        request = head.encode() + content
        line: _Line | None = None
        while self._idle and line is None:
            line = self._idle.pop()
            if line.closed or time.monotonic() - line.since > IDLE_SECONDS:
                line.close()
                line = None
        try:
            if line is not None:
                with suppress(ConnectionError):
                    await line.ask(request)
                    return line
            async with asyncio.timeout(CONNECT_SECONDS):
                _, line = await self._loop.create_connection(_Line, self._host, self._port, ssl=self._ssl)
            await line.ask(request)
        except TimeoutError:
            raise ConnectionError(f"there was no connection within {CONNECT_SECONDS:g} seconds") from None
        except asyncio.CancelledError:
            if line is not None:
                line.close()
            raise
        return line

    async def _read(self, line: _Line) -> str:
        said = bytearray()
        async for part in line.parts():
            said += part
            if len(said) > ANSWER_BYTES:
                raise EngineLost(f"the engine at {self.url} answers with more than {ANSWER_BYTES} bytes")
        return self._without_secrets(said)

    def _json(self, said: str, path: str) -> Any:
        try:
            return json.loads(said)
        except (ValueError, RecursionError):
            raise EngineLost(f"{self.url}{path} answers with no JSON; is an engine there?") from None

    def _without_secrets(self, said: bytes | bytearray) -> str:
        """Strike our own secrets out: what an engine says may be logged."""
        text = said.decode(errors="replace")
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return text


def load_seconds(folder: Path) -> float:
    """Give the seconds that an engine may take to load the files of a folder."""
    return LOAD_SECONDS + sum(file.stat().st_size for file in folder.iterdir()) / LOAD_RATE


def _message(text: str) -> str:
    """Find the message in an error's JSON, wherever this engine puts it; one line of at most 300 characters."""
    try:
        said = json.loads(text)
        said = said.get("error", said.get("message", said.get("detail", said)))
        said = said.get("message", said) if isinstance(said, dict) else said
    except (ValueError, AttributeError, RecursionError):
        said = text
    return " ".join(str(said).split())[:300] or "nothing"


def _close(loop: asyncio.AbstractEventLoop, idle: list[_Line], thread: threading.Thread) -> None:
    """Cancel everything in the thread, close the connections there, and end the thread."""

    async def close() -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for line in idle:
            line.close()
        loop.stop()

    if not loop.is_closed():
        asyncio.run_coroutine_threadsafe(close(), loop)
        thread.join(CONNECT_SECONDS)
        if not thread.is_alive():
            loop.close()
