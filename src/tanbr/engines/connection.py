"""HTTP to an engine, by one thread of its own, so that any number of others may wait for it."""

import asyncio
import base64
import json
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from tanbr.errors import ConfigError
from tanbr.serve.records import ServiceError

Result = TypeVar("Result")

CONNECT_SECONDS = 5.0
REST_SECONDS = 2.0  # of a connection, at most: engines close them after 5, and one that is just being closed seems lost
ANSWER_SECONDS = 30.0  # for questions about itself, which wait for a step of the model
LOAD_SECONDS = 120.0  # for all that is generated to end: clients wait 30 s for an answer, by default
LOAD_RATE = 100e6  # bytes of weights a second that the slowest disk gives
END_SECONDS = 1.0  # for a stream to end after it has said that it does; its connection is used again then
ANSWER_BYTES = 16 << 20  # of one answer: ten thousand tokens with their chances take 5 MB
LINE_BYTES = 1 << 20  # of one event: a token takes less than a thousand
SECRET_LENGTH = 8  # characters of a token that is struck out wherever it is repeated; shorter ones are words


class EngineLost(ServiceError):  # noqa: N818 - a state of affairs
    """The engine is not reached, has died, or holds other weights than it was given."""


class EngineStatus(ServiceError):  # noqa: N818 - what came
    """The engine answered with a status that says no."""

    def __init__(self, path: str, status: int, said: str) -> None:
        super().__init__(f"the engine answers {path} with {status}: {said}")
        self.path, self.status, self.said = path, status, said


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
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=REST_SECONDS)
            self._http = httpx2.AsyncClient(base_url=url, headers=headers, timeout=timeout, limits=limits)
        except (httpx2.InvalidURL, UnicodeEncodeError) as error:
            raise ConfigError(f"an engine's URL must be like http://127.0.0.1:8000 (got {url!r}: {error})") from None
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="tanbr-engine", daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _ended, self._loop, self._http, thread)

    def close(self) -> None:
        """Hang up."""
        self._end()

    def start(self, work: "Coroutine[Any, Any, Result]") -> "Future[Result]":
        """Let the thread do something; cancelling the future ends it."""
        if not self._end.alive:  # nobody would ever do it
            work.close()
            raise EngineLost(f"the connection to {self.url} was closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: "Coroutine[Any, Any, Result]") -> Result:
        """Let the thread do something, and wait for it."""
        try:
            return self.start(work).result()
        except CancelledError:
            raise EngineLost(f"the connection to {self.url} was closed") from None

    async def get(self, path: str) -> Any:
        """Ask for JSON."""
        return await self._asked("GET", path, None, ANSWER_SECONDS)

    async def post(self, path: str, body: Any = None, *, seconds: float = ANSWER_SECONDS, plain: bool = False) -> Any:
        """Send JSON, and read JSON, or `plain` text; None for an empty answer."""
        return await self._asked("POST", path, body, seconds, plain=plain)

    async def events(self, path: str, body: Any) -> AsyncGenerator[Any]:
        """Send JSON, and read the events of a stream as they come; whoever waits gives up by himself."""
        async with self._answered("POST", path, body, None) as (response, deadline):
            held = b""  # of a line that is not yet whole
            async for chunk in response.aiter_raw():
                *lines, held = (held + chunk).split(b"\n")
                if len(held) > LINE_BYTES:
                    raise EngineLost(f"the engine at {self.url} streams a line of more than {LINE_BYTES} bytes")
                for line in lines:
                    if (data := line.removeprefix(b"data:").strip()) == b"[DONE]":
                        deadline.reschedule(asyncio.get_running_loop().time() + END_SECONDS)
                    elif line.startswith(b"data:"):
                        yield self._json(data, path)

    async def _asked(self, method: str, path: str, body: Any, seconds: float, *, plain: bool = False) -> Any:
        async with self._answered(method, path, body, seconds) as (response, _):
            said = await self._whole(response)
        return self._cleaned(said) if plain else self._json(said, path) if said else None

    @asynccontextmanager
    async def _answered(
        self, method: str, path: str, body: Any, seconds: float | None
    ) -> AsyncGenerator[tuple[httpx2.Response, asyncio.Timeout]]:
        """Ask, and give an answer that says yes, before it is read, with the deadline for reading it."""
        try:
            async with (
                asyncio.timeout(seconds) as deadline,
                self._http.stream(method, path, json=body) as response,
            ):
                if "content-encoding" in response.headers:  # a few bytes could become gigabytes
                    raise EngineLost(f"{self.url}{path} is compressed, and was not to be; is an engine there?")
                if response.status_code != 200:
                    raise self._status(path, response.status_code, self._cleaned(await self._whole(response)))
                yield response, deadline
        except TimeoutError:
            if seconds is None:
                return  # a stream that has said all
            raise EngineLost(f"the engine at {self.url} did not answer {path} in time") from None
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            said = self._cleaned(f"{type(error).__name__}: {error}".encode())
            raise EngineLost(f"no engine answers at {self.url} ({said}); start it there") from None

    async def _whole(self, response: httpx2.Response) -> bytes:
        said = bytearray()
        async for chunk in response.aiter_raw():
            said += chunk
            if len(said) > ANSWER_BYTES:
                raise EngineLost(f"the engine at {self.url} answers with more than {ANSWER_BYTES} bytes")
        return bytes(said)

    def _json(self, said: bytes, path: str) -> Any:
        try:
            return json.loads(self._cleaned(said))
        except (ValueError, RecursionError):
            raise EngineLost(f"{self.url}{path} answers with no JSON; is an engine there?") from None

    def _cleaned(self, said: bytes) -> str:
        """Strike out our own secrets: what an engine says may end in a log."""
        text = said.decode(errors="replace")
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return text

    def _status(self, path: str, status: int, text: str) -> EngineStatus:
        try:
            said = json.loads(text)
            said = said.get("error", said.get("message", said.get("detail", said)))
            said = said.get("message", said) if isinstance(said, dict) else said
        except (ValueError, AttributeError, RecursionError):
            said = text
        return EngineStatus(path, status, " ".join(str(said).split())[:300] or "nothing")


def load_seconds(folder: Path) -> float:
    """Say how long an engine may take to load the files of a folder."""
    return LOAD_SECONDS + sum(file.stat().st_size for file in folder.iterdir()) / LOAD_RATE


def _ended(loop: asyncio.AbstractEventLoop, http: httpx2.AsyncClient, thread: threading.Thread) -> None:
    """Close the client in its own thread, and end that."""

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
