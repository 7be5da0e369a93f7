"""HTTP to an engine, from one thread, so that any number of other threads may wait for answers.

The engine is not trusted: what it sends is limited in time and size, is never decompressed, and is logged without our
own secrets.
"""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from uvicorn.loops.auto import auto_loop_factory
from yarl import URL

from tanbr.errors import ConfigError
from tanbr.serve.records import ServiceError

Result = TypeVar("Result")
TRACED: ContextVar[Mapping[str, str] | None] = ContextVar("TRACED", default=None)  # headers of a request's span

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0  # for questions about the engine itself, which wait for a step of the model
LOAD_SECONDS = 120.0  # for running answers to end before a load: clients wait 30 s for an answer by default
LOAD_RATE = 100e6  # bytes of weights per second that the slowest disk delivers
ANSWER_BYTES = 16 << 20  # of one answer: ten thousand tokens with their probabilities take 5 MB
LINE_BYTES = 1 << 20  # of one event: a token takes less than a thousand bytes
KEY_LENGTH = 8  # a key of fewer characters is not struck out of what the engine says: it may be a plain word


class EngineError(ServiceError):
    """The engine did not do what it was asked; `status` and `body` are its HTTP answer, and `said` its message."""

    def __init__(self, sentence: str, *, status: int | None = None, said: str = "", body: str = "") -> None:
        super().__init__(sentence)
        self.status, self.said, self.body = status, said, body


class EngineLost(EngineError):  # noqa: N818 - a state of affairs
    """The engine cannot be reached, has failed, or holds other weights than it was given."""


class EngineRefused(EngineError):  # noqa: N818 - a verdict
    """The engine answers, and refuses what it was asked."""


class Connection:
    """An engine's address, and how it is asked."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        try:
            address = URL(url)
            self.url = str(address.origin()) + address.raw_path.rstrip("/")
            if address.scheme not in ("http", "https"):
                raise ValueError("it has another scheme")
            if address.user:
                raise ValueError("its key is given as TANBR_ENGINE_TOKEN")
            if token and not (token.isascii() and token.isprintable()):
                raise ValueError("the engine's token has other characters than a header may have")
        except ValueError as error:
            raise ConfigError(f"an engine's URL must be like http://127.0.0.1:8000 (got {url!r}: {error})") from None
        self._token = token if token and len(token) >= KEY_LENGTH else None
        headers = {"accept-encoding": "identity", "content-type": "application/json"}
        headers |= {"authorization": f"Bearer {token}"} if token else {}
        self._loop = _loop()
        self._running: set[Future[Any]] = set()
        self._http = asyncio.run_coroutine_threadsafe(_session(headers), self._loop).result()

    def close(self) -> None:
        """Break off all that runs; those who wait for it get an error."""
        for one in tuple(self._running):
            one.cancel()
        asyncio.run_coroutine_threadsafe(self._http.close(), self._loop).result()

    def start(self, work: "Coroutine[Any, Any, Result]") -> "Future[Result]":
        """Run a coroutine in the engines' thread; cancelling the future ends it."""
        started = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._running.add(started)
        started.add_done_callback(self._running.discard)
        return started

    def call(self, work: "Coroutine[Any, Any, Result]") -> Result:
        """Run a coroutine in the engines' thread, and wait for it."""
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
        async with self._answer(method, path, body, seconds) as answer:
            return await self._read(answer)

    async def refusal(self, path: str, body: Any, *, seconds: float = ANSWER_SECONDS) -> EngineError | None:
        """Post JSON; give what the engine answers against it, None if it does it."""
        try:
            await self.text("POST", path, body, seconds=seconds)
        except EngineError as error:
            if error.status is None:
                raise
            return error
        return None

    async def events(self, path: str, body: Any) -> AsyncGenerator[Any]:
        """Send JSON, and read the events of a stream as they come; what is asked for whole is one event.

        There is no time limit: the reader gives up.
        """
        if not body.get("stream"):
            yield await self.ask("POST", path, body, seconds=None)
            return
        async with self._answer("POST", path, body, None) as answer:
            rest = b""  # of a line that is not yet complete
            async for part in answer.content.iter_any():
                *lines, rest = (rest + part).split(b"\n")
                if len(rest) > LINE_BYTES:
                    raise EngineLost(f"the engine at {self.url} streams a line of more than {LINE_BYTES} bytes")
                for one in lines:
                    if (data := one.removeprefix(b"data:").strip()) == b"[DONE]":
                        return
                    if one.startswith(b"data:"):
                        yield self._json(self._without_key(data), path)

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: Any, seconds: float | None
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Ask; give an answer with status 200, not yet read."""
        answer: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(seconds):
                answer = await self._http.request(
                    method,
                    URL(self.url + path, encoded=True),
                    data=None if body is None else json.dumps(body).encode(),
                    headers=TRACED.get(),
                    allow_redirects=False,
                )
                if "content-encoding" in answer.headers:  # a few bytes could become gigabytes
                    raise EngineLost(f"{self.url}{path} is compressed, and was not to be; is an engine there?")
                if answer.status != 200:
                    said = _message(text := await self._read(answer))
                    kind = EngineRefused if answer.status < 500 else EngineLost
                    sentence = f"the engine answers {path} with {answer.status}: {said}"
                    raise kind(sentence, status=answer.status, said=said, body=text)
                yield answer
        except RuntimeError:
            raise EngineLost(f"the connection to {self.url} was closed") from None
        except (aiohttp.ClientError, ConnectionError) as error:
            said = _message(self._without_key(str(error).encode()))
            raise EngineLost(f"no engine answers at {self.url} ({said}); start it there") from None
        except TimeoutError:
            raise EngineLost(f"the engine at {self.url} did not answer {path} in time") from None
        finally:
            if answer is not None:
                answer.close()

    async def _read(self, answer: aiohttp.ClientResponse) -> str:
        said = bytearray()
        async for part in answer.content.iter_any():
            said += part
            if len(said) > ANSWER_BYTES:
                raise EngineLost(f"the engine at {self.url} answers with more than {ANSWER_BYTES} bytes")
        return self._without_key(said)

    def _json(self, said: str, path: str) -> Any:
        try:
            return json.loads(said)
        except (ValueError, RecursionError):
            raise EngineLost(f"{self.url}{path} answers with no JSON; is an engine there?") from None

    def _without_key(self, said: bytes | bytearray) -> str:
        """Strike our own key out: what an engine says may be logged."""
        text = said.decode(errors="replace")
        return text.replace(self._token, "…") if self._token else text


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


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Start the thread that talks to all engines, and give its loop."""
    loop: asyncio.AbstractEventLoop = auto_loop_factory()()
    threading.Thread(target=loop.run_forever, name="tanbr-engines", daemon=True).start()
    return loop


async def _session(headers: Mapping[str, str]) -> aiohttp.ClientSession:
    """Make what asks, in its loop.

    Each request has a connection of its own: engines close idle ones, perhaps just as we send.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True, limit=0),
        timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        auto_decompress=False,
    )
