"""HTTP to an engine, by one thread of its own, so that any number of others may wait for it."""

import asyncio
import json
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import httpx2

from tanbr.errors import ConfigError
from tanbr.serve.records import ServiceError

Result = TypeVar("Result")

CONNECT_SECONDS = 5.0
REST_SECONDS = 2.0  # of a connection, at most: engines close them after 5, and one that is just being closed seems lost
ANSWER_SECONDS = 30.0  # for questions about itself, which wait for a step of the model
LOAD_SECONDS = 1800.0  # for all that is generated to end, or for weights


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
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        timeout = httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS, pool=None)
        try:
            address = httpx2.URL(url)
            self.url = str(address.copy_with(username=None, password=None)).rstrip("/")
            if address.scheme not in ("http", "https") or not address.host:
                raise ConfigError(f"an engine's URL must be like http://127.0.0.1:8000 (got {url!r})")
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
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: "Coroutine[Any, Any, Result]") -> Result:
        """Let the thread do something, and wait for it."""
        return self.start(work).result()

    async def get(self, path: str) -> Any:
        """Ask for JSON."""
        return await self._asked("GET", path, None, ANSWER_SECONDS)

    async def post(self, path: str, body: Any = None, *, seconds: float = ANSWER_SECONDS, plain: bool = False) -> Any:
        """Send JSON, and read JSON, or `plain` text; None for an empty answer."""
        return await self._asked("POST", path, body, seconds, plain=plain)

    async def events(self, path: str, body: Any) -> AsyncGenerator[Any]:
        """Send JSON, and read the events of a stream as they come."""
        try:
            timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS, pool=None)  # whoever waits gives up by himself
            async with self._http.stream("POST", path, json=body, timeout=timeout) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise self._status(path, response)
                async for line in response.aiter_lines():
                    if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
                        yield json.loads(data)
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise self._lost(error) from None
        except ValueError:
            raise EngineLost(f"the engine at {self.url} streams what is no JSON; is it one?") from None

    async def _asked(self, method: str, path: str, body: Any, seconds: float, *, plain: bool = False) -> Any:
        timeout = httpx2.Timeout(seconds, connect=CONNECT_SECONDS, pool=None)
        try:
            response = await self._http.request(method, path, json=body, timeout=timeout)
        except httpx2.HTTPError as error:
            raise self._lost(error) from None
        if response.status_code != 200:
            raise self._status(path, response)
        try:
            return response.text if plain else response.json() if response.content else None
        except ValueError:
            raise EngineLost(f"{self.url}{path} answers with no JSON; is an engine there?") from None

    def _lost(self, error: Exception) -> EngineLost:
        return EngineLost(f"no engine answers at {self.url} ({type(error).__name__}: {error}); start it there")

    def _status(self, path: str, response: httpx2.Response) -> EngineStatus:
        try:
            said = response.json()
            said = said.get("error", said.get("message", said.get("detail", said)))
            said = said.get("message", said) if isinstance(said, dict) else said
        except (ValueError, AttributeError):
            said = response.text
        return EngineStatus(path, response.status_code, " ".join(str(said).split())[:300] or "nothing")


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
