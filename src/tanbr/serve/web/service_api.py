"""What the web needs of a service (`Service`, a replica of a fleet, a fake in tests), and how it waits for one."""
# ruff: noqa: D102 - `Service` says what the methods do

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from anyio import CapacityLimiter, to_thread
from numpy.typing import ArrayLike
from pydantic_core import to_json
from starlette.responses import StreamingResponse
from starlette.types import Receive

from tanbr.serve.records import (
    Answered,
    ClientView,
    Feedback,
    Generated,
    OnToken,
    Receipt,
    ServiceInfo,
    ServiceState,
    SlotView,
    VersionView,
)
from tanbr.serve.relay import Call
from tanbr.serve.sampling import WritingOptions
from tanbr.serve.web.refusals import Refusal, refusal_of
from tanbr.types import Text

T = TypeVar("T")
R = TypeVar("R")


@runtime_checkable
class ServiceApi(Protocol):
    """Answers, learns, tells what it does, and is steered, from any thread; `Service` says what each method does."""

    def start(self) -> None: ...
    def stop(self, timeout: float = 30.0) -> bool: ...
    def faults(self) -> tuple[str, ...]: ...
    @property
    def ready(self) -> bool: ...
    @property
    def info(self) -> ServiceInfo: ...
    @property
    def client_secret(self) -> bytes: ...

    def submit(
        self, texts: Sequence[Text], *, task: str | None = None, labels: Sequence[str] = ()
    ) -> "Future[Answered]": ...
    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int | None = None,
        options: WritingOptions = WritingOptions(),  # noqa: B008 - it is frozen
        on_token: OnToken | None = None,
        task: str | None = None,
    ) -> "Future[Generated]": ...
    def relay(self, call: Call, *, task: str | None = None) -> "Future[dict[str, Any]]": ...
    def folder_of(self, name: str) -> str | None: ...
    def chat(self, messages: Sequence[Mapping[str, Any]]) -> "Future[str]": ...
    def feedback(self, items: Sequence[Feedback], *, client: str = "") -> Receipt: ...

    def state(self) -> ServiceState: ...
    def slots(self, limit: int = 100, before: int | None = None) -> list[SlotView]: ...
    def versions(self) -> list[VersionView]: ...
    def clients(self) -> list[ClientView]: ...

    def pin(self, target: ArrayLike | int) -> int: ...
    def unpin(self) -> None: ...
    def rollback(self, version: int | None = None) -> int: ...
    def end_slot(self) -> int: ...


async def settled(future: "Future[T]", *, receive: Receive, seconds: float) -> T:
    """Wait for an answer, but neither for ever nor for a client that has left: then nobody needs the answer."""
    return await awaited(asyncio.wrap_future(future), receive=receive, seconds=seconds)  # cancels the future, too


async def awaited(answered: "asyncio.Future[T]", *, receive: Receive, seconds: float) -> T:
    """Wait while the client does, for so many seconds at most; otherwise cancel what is waited for."""
    left = asyncio.ensure_future(_left(receive))
    both: set[asyncio.Future[Any]] = {answered, left}
    try:
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if answered.done():
            return answered.result()
        if left.done():
            raise Refusal(499, "the client left before its answer")
        raise Refusal.later(504, f"there was no answer within {seconds:g} seconds", seconds=1)
    finally:
        left.cancel()
        answered.cancel()


async def _left(receive: Receive) -> None:
    """Wait until the client hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Stream(Generic[T]):
    """Server-sent events of what a service gives bit by bit, in threads of its own, on the way to a client."""

    def __init__(self, receive: Receive, *, seconds: float) -> None:
        """Wait at most so many seconds for each piece, and no longer than the client does for the first."""
        self._loop, self._receive, self._seconds = asyncio.get_running_loop(), receive, seconds
        self._pieces: asyncio.Queue[T | None] = asyncio.Queue()

    def put(self, piece: T | None) -> None:
        """Take a piece, in any thread; None is behind the last."""
        self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)

    async def response(
        self, future: "Future[R]", *, shown: Callable[[T], Any], rest: Callable[[R], Iterable[Any]]
    ) -> StreamingResponse:
        """Answer with each piece as `shown`, then with the `rest`, which the result says.

        What goes wrong before the first piece, a full queue say, still has a status of its own.
        """
        future.add_done_callback(lambda _: self.put(None))
        first = asyncio.ensure_future(self._pieces.get())
        try:
            piece = await awaited(first, receive=self._receive, seconds=self._seconds)
        except (Refusal, asyncio.CancelledError):
            future.cancel()
            raise
        if piece is None:
            future.result()
        return StreamingResponse(self._events(piece, future, shown, rest), media_type="text/event-stream")

    async def _events(
        self, piece: T | None, future: "Future[R]", shown: Callable[[T], Any], rest: Callable[[R], Iterable[Any]]
    ) -> AsyncIterator[bytes]:
        try:
            while piece is not None:
                yield _event(shown(piece))
                piece = await asyncio.wait_for(self._pieces.get(), self._seconds)
            for last in rest(future.result()):
                yield _event(last)
        except TimeoutError:
            yield Refusal(504, f"there was no more text within {self._seconds:g} seconds").event()
        except Exception as error:  # the status is sent already: all that is left is to say it
            yield refusal_of(error).event()
        finally:
            future.cancel()  # of no effect once it is done; otherwise the client has left
        yield b"data: [DONE]\n\n"


def _event(value: Any) -> bytes:
    return b"data: " + to_json(value) + b"\n\n"


class Workers:
    """Threads that wait for the service, some for each kind of work: feedback that is stuck holds up nobody else.

    At most `threads` work and `waiting` wait; beyond that work is refused, and may be sent again.
    """

    def __init__(self, what: str, *, threads: int, waiting: int) -> None:
        self._what, self._most, self._inside = what, threads + waiting, 0
        self._limiter = CapacityLimiter(threads)

    async def run(self, work: Callable[[], T]) -> T:
        """Do the work in a thread."""
        if self._inside >= self._most:
            raise Refusal.later(503, f"too much {self._what} is waiting already", seconds=1)
        self._inside += 1
        try:
            return await to_thread.run_sync(work, limiter=self._limiter)
        finally:
            self._inside -= 1
