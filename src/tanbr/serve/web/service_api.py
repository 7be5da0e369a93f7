"""What the web needs of a service (`Service`, a replica of a fleet, a fake in tests), and how it waits for one."""

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
from tanbr.serve.sampling import Manner
from tanbr.serve.web.refusals import Refusal
from tanbr.types import Text

T = TypeVar("T")


@runtime_checkable
class ServiceApi(Protocol):
    """Answers, learns, tells what it does, and is steered; every method may be called from any thread."""

    def start(self) -> None:
        """Begin to answer."""

    def stop(self, timeout: float = 30.0) -> bool:
        """Finish what was accepted and save; whether it all was done in time."""

    @property
    def ready(self) -> bool:
        """Whether requests are answered."""

    @property
    def info(self) -> ServiceInfo:
        """What is served."""

    @property
    def client_secret(self) -> bytes:
        """What clients' keys are made with: kept in the state, as the evidence about clients is."""

    def faults(self) -> tuple[str, ...]:
        """What is broken, a sentence each; none if all is well. Never blocks."""

    def submit(
        self, texts: Sequence[Text], *, task: str | None = None, labels: Sequence[str] = ()
    ) -> "Future[Answered]":
        """Answer texts, of a task or with labels that the client names. A cancelled future is not answered."""

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int | None = None,
        manner: Manner = Manner(),  # noqa: B008 - it is frozen
        on_token: OnToken | None = None,
        task: str | None = None,
    ) -> "Future[Generated]":
        """Write `manner.n` answers to each prompt, those of the first prompt first. A cancelled future ends early."""

    def relay(self, call: Call, *, task: str | None = None) -> "Future[dict[str, Any]]":
        """Have an engine answer a request as it is; the answer, or what a stream ends with."""

    def folder_of(self, name: str) -> str | None:
        """Find the folder of an adapter that an engine asks for; None if there is none of this name."""

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> "Future[str]":
        """Make a prompt of a conversation; InputError if the model cannot, CheckpointError if its template is bad."""

    def feedback(self, items: Sequence[Feedback], *, client: str = "") -> Receipt:
        """Take in rewards of one client; they are on disk when this returns."""

    def state(self) -> ServiceState:
        """What the service is doing now."""

    def slots(self, limit: int = 100, before: int | None = None) -> list[SlotView]:
        """The newest slots first."""

    def versions(self) -> list[VersionView]:
        """The merge versions that can be rolled back to, newest first."""

    def clients(self) -> list[ClientView]:
        """The clients that gave feedback, least trusted first."""

    def tree(self) -> TreeView | None:
        """The router's search tree; None for a router without one."""

    def pin(self, target: ArrayLike | int) -> int:
        """Serve one blend (K,), or a merge version by its number, until `unpin`; its merge version."""

    def unpin(self) -> None:
        """Let the router choose again."""

    def rollback(self, version: int | None = None) -> int:
        """Serve an earlier merge version until the slot ends."""

    def end_slot(self) -> int:
        """End the slot now; the number of the next."""


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
