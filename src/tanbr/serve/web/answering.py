"""Waiting for the service's answer, and what its errors mean to a client."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.types import Receive

from tanbr.errors import InputError, TanbrError
from tanbr.serve.records import Overloaded, ServiceError, Stopping
from tanbr.serve.web import logs
from tanbr.serve.web.refusals import Refusal, invalid
from tanbr.types import to_jsonable

T = TypeVar("T")
LONGEST = 300  # characters of a sentence


def answer(value: Any) -> Response:
    """Write an answer as JSON."""
    return Response(to_json(value, inf_nan_mode="null"), media_type="application/json")


def view(value: Any) -> Response:
    """Write a view of the service's records as JSON."""
    return answer(to_jsonable(value))


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


def check_task(task: str | None, known: Sequence[str]) -> None:
    """Refuse a task that nobody knows; most clients name none."""
    if task is not None and task not in known:
        raise Refusal(422, f"task must be one of {', '.join(known)} (got {task[:60]!r})", param="task")


def shortened(sentence: str) -> str:
    """Cut what a client sent out of the middle of a sentence that repeats it."""
    return sentence if len(sentence) <= LONGEST else f"{sentence[: LONGEST // 2]} … {sentence[-LONGEST // 2 :]}"


def refusal_of(error: Exception) -> Refusal:
    """Say what an error of the service means to a client: what only the operator should read goes to the log."""
    match error:
        case Refusal():
            return error
        case RequestValidationError():
            return invalid(error.errors())
        case Overloaded():
            return Refusal.later(429, str(error), seconds=error.retry_after)
        case Stopping():
            return Refusal.later(503, str(error), seconds=1)
        case ServiceError():
            fault = logs.say_fault(str(error), error=error.__cause__)
            says = f"this could not be answered, and is safe to send again; the server's log says why (fault {fault})"
            return Refusal.later(503, says, seconds=1)
        case InputError():
            return Refusal(422, shortened(str(error)))
        case TanbrError():  # a full disk, say: the operator's to put right
            fault = logs.say_fault(str(error), error=error.__cause__)
            return Refusal.later(503, f"the server cannot do this now; its log says why (fault {fault})", seconds=5)
        case HTTPException(status_code=405, headers=headers):
            allowed = (headers or {}).get("Allow", "another method")
            return Refusal(405, f"use {allowed} here", headers=headers)
        case HTTPException(status_code=404):
            return Refusal(404, "there is nothing at this path; /openapi.json says what there is")
        case HTTPException():
            return Refusal(error.status_code, str(error.detail), headers=error.headers)
    fault = logs.say_fault(type(error).__name__, error=error)
    return Refusal(500, f"something is wrong with the server; its log says what (fault {fault})")


def refuse_with_sentences(app: FastAPI) -> None:
    """Have every error of every route answered by `refusal_of`."""

    async def refuse(request: Request, error: Exception) -> Response:  # noqa: ARG001 - FastAPI's signature
        return refusal_of(error).response()

    for kind in (HTTPException, RequestValidationError, TanbrError, Exception):
        app.add_exception_handler(kind, refuse)
