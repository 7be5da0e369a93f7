"""What the web needs of a service (`Service`, a replica of a fleet, a fake in tests), and how it waits for one."""
# ruff: noqa: D102 - `Service` says what the methods do

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from anyio import CapacityLimiter, to_thread
from numpy.typing import ArrayLike
from starlette.types import Receive

from tanbr.router import TreeView
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
from tanbr.serve.web.refusals import Refusal
from tanbr.types import Text

T = TypeVar("T")


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
    def tree(self) -> TreeView | None: ...

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


class Pieces(Generic[T]):
    """What a service gives bit by bit, on its way from the service's threads to a client."""

    def __init__(self, *, seconds: float) -> None:
        """Wait at most so many seconds for each piece."""
        self._loop, self._seconds = asyncio.get_running_loop(), seconds
        self._pieces: asyncio.Queue[T | None] = asyncio.Queue()
        self._first: T | None = None

    def put(self, piece: T) -> None:
        """Take a piece, in any thread."""
        self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)

    async def begin(self, future: "Future[Any]", receive: Receive) -> None:
        """Wait for the first piece: what goes wrong before it, a full queue say, still has a status of its own."""
        future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._pieces.put_nowait, None))
        try:
            self._first = await awaited(
                asyncio.ensure_future(self._pieces.get()), receive=receive, seconds=self._seconds
            )
        except (Refusal, asyncio.CancelledError):
            future.cancel()
            raise
        if self._first is None:
            future.result()

    async def __aiter__(self) -> AsyncIterator[T]:
        """Give each piece; raises TimeoutError if the next does not come."""
        piece = self._first
        while piece is not None:
            yield piece
            piece = await asyncio.wait_for(self._pieces.get(), self._seconds)


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
