"""HTTP to an engine, from one thread, so that any number of other threads may wait for answers.

The engine is not trusted: what it sends is limited in time and size, is never decompressed, and is logged without our
own secrets.
"""

import asyncio
import base64
import json
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from tanbr.errors import ConfigError
from tanbr.serve.records import ServiceError

Result = TypeVar("Result")
TRACED: ContextVar[Mapping[str, str] | None] = ContextVar("TRACED", default=None)  # headers of a request's span

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 2.0  # before an unused connection is closed: engines close after 5 s, and a request just then fails
ANSWER_SECONDS = 30.0  # for questions about the engine itself, which wait for a step of the model
LOAD_SECONDS = 120.0  # for running answers to end before a load: clients wait 30 s for an answer by default
LOAD_RATE = 100e6  # bytes of weights per second that the slowest disk delivers
END_SECONDS = 1.0  # for a stream to close after its [DONE]; its connection can then be used again
ANSWER_BYTES = 16 << 20  # of one answer: ten thousand tokens with their probabilities take 5 MB
LINE_BYTES = 1 << 20  # of one event: a token takes less than a thousand bytes
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


class Connection:
    """An engine's address, and the thread that talks to it."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        headers = {"accept-encoding": "identity"} | ({} if token is None else {"authorization": f"Bearer {token}"})
        timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS, pool=None)  # `asyncio.timeout` limits the rest
        try:
            address = httpx2.URL(url)
            self.url = str(address.copy_with(username=None, password=None)).rstrip("/")
            if address.scheme not in ("http", "https") or not address.host:
                raise ConfigError(f"an engine's URL must be like http://127.0.0.1:8000 (got {url!r})")
            secrets = (token or "", address.password, base64.b64encode(address.userinfo).decode())
            self._secrets = [one for one in secrets if len(one) >= SECRET_LENGTH]
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=IDLE_SECONDS)
            self._http = httpx2.AsyncClient(base_url=url, headers=headers, timeout=timeout, limits=limits)
        except (httpx2.InvalidURL, UnicodeEncodeError) as error:
            raise ConfigError(f"an engine's URL must be like http://127.0.0.1:8000 (got {url!r}: {error})") from None
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="tanbr-engine", daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _close, self._loop, self._http, thread)

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
        async with self._answer(method, path, body, seconds) as (response, _):
            return await self._read(response)

    async def whole(self, path: str, body: Any) -> AsyncGenerator[Any]:
        """Send JSON, and read an answer as a stream of one event, without a time limit."""
        yield await self.ask("POST", path, body, seconds=None)

    async def events(self, path: str, body: Any) -> AsyncGenerator[Any]:
        """Send JSON, and read the events of a stream as they come. There is no time limit: the reader gives up."""
        async with self._answer("POST", path, body, None) as (response, deadline):
            rest = b""  # of a line that is not yet complete
            async for chunk in response.aiter_raw():
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > LINE_BYTES:
                    raise EngineLost(f"the engine at {self.url} streams a line of more than {LINE_BYTES} bytes")
                for line in lines:
                    if (data := line.removeprefix(b"data:").strip()) == b"[DONE]":
                        deadline.reschedule(asyncio.get_running_loop().time() + END_SECONDS)
                    elif line.startswith(b"data:"):
                        yield self._json(self._without_secrets(data), path)

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: Any, seconds: float | None
    ) -> AsyncGenerator[tuple[httpx2.Response, asyncio.Timeout]]:
        """Ask; give an answer with status 200, not yet read, and the deadline for reading it."""
        try:
            async with (
                asyncio.timeout(seconds) as deadline,
                self._http.stream(method, path, json=body, headers=TRACED.get()) as response,
            ):
                if "content-encoding" in response.headers:  # a few bytes could become gigabytes
                    raise EngineLost(f"{self.url}{path} is compressed, and was not to be; is an engine there?")
                if response.status_code != 200:
                    said = _message(body := await self._read(response))
                    kind = EngineRefused if response.status_code < 500 else EngineLost
                    sentence = f"the engine answers {path} with {response.status_code}: {said}"
                    raise kind(sentence, status=response.status_code, said=said, body=body)
                yield response, deadline
        except TimeoutError:
            if seconds is None:
                return  # the stream has sent its [DONE]
            raise EngineLost(f"the engine at {self.url} did not answer {path} in time") from None
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            said = self._without_secrets(f"{type(error).__name__}: {error}".encode())
            raise EngineLost(f"no engine answers at {self.url} ({said}); start it there") from None

    async def _read(self, response: httpx2.Response) -> str:
        said = bytearray()
        async for chunk in response.aiter_raw():
            said += chunk
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


def _close(loop: asyncio.AbstractEventLoop, http: httpx2.AsyncClient, thread: threading.Thread) -> None:
    """Cancel everything in the thread, close the client there, and end the thread."""

    async def close() -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await http.aclose()
        loop.stop()

    if not loop.is_closed():
        asyncio.run_coroutine_threadsafe(close(), loop)
        thread.join(CONNECT_SECONDS)
        if not thread.is_alive():
            loop.close()
