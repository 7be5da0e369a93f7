"""How routes wait for the service's answers: for a whole one, or for the pieces of a stream."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import StreamingResponse

from tanbr.serve.web.refusals import DONE, Refusal, in_stream, refusal_of

T = TypeVar("T")


async def settled(future: "Future[T] | asyncio.Future[T]", request: Request, *, seconds: float) -> T:
    """Wait for an answer, but neither for ever nor for a client that has left: then nobody needs the answer."""
    answered = future if isinstance(future, asyncio.Future) else asyncio.wrap_future(future)  # cancels it, too
    left = asyncio.ensure_future(_left(request))
    both: set[asyncio.Future[Any]] = {answered, left}
    try:
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if answered.done():
            return answered.result()
        if left.done():
            raise Refusal(499, "the client left before its answer")
        raise Refusal(504, f"there was no answer within {seconds:g} seconds", retry=1)
    finally:
        left.cancel()
        answered.cancel()


async def _left(request: Request) -> None:
    """Wait until the client hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Stream:
    """Server-sent events of what a service gives bit by bit, in threads of its own, on the way to a client."""

    def __init__(self, request: Request, *, seconds: float) -> None:
        """Wait at most so many seconds for each event, and no longer than the client does for the first."""
        self._loop, self._request, self._seconds = asyncio.get_running_loop(), request, seconds
        self._events: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, event: Any) -> None:
        """Take an event, in any thread; None is behind the last."""
        self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def response(self, future: "Future[T]", rest: Callable[[T], Iterable[Any]]) -> StreamingResponse:
        """Answer with each event, then with the `rest`, which the result says.

        What goes wrong before the first event, a full queue say, still has a status of its own.
        """
        future.add_done_callback(lambda _: self.put(None))
        try:
            first = await settled(asyncio.ensure_future(self._events.get()), self._request, seconds=self._seconds)
        except (Refusal, asyncio.CancelledError):
            future.cancel()
            raise
        if first is None:
            future.result()
        return StreamingResponse(self._sent(first, future, rest), media_type="text/event-stream")

    async def _sent(self, event: Any, future: "Future[T]", rest: Callable[[T], Iterable[Any]]) -> AsyncIterator[bytes]:
        try:
            while event is not None:
                yield in_stream(event)
                event = await asyncio.wait_for(self._events.get(), self._seconds)
            for last in rest(future.result()):
                yield in_stream(last)
        except Exception as error:  # the status is sent already: all that is left is to say it
            late = Refusal(504, f"there was no more text within {self._seconds:g} seconds")
            yield in_stream((late if isinstance(error, TimeoutError) else refusal_of(error)).shown)
        finally:
            future.cancel()  # of no effect once it is done; otherwise the client has left
        yield DONE
