"""Waiting for the service's answer, and what its errors mean to a client."""

import asyncio
import logging
from concurrent.futures import Future
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from tanbr.errors import InputError, TanbrError
from tanbr.serve.records import Overloaded, ServiceError, Stopping
from tanbr.serve.web import logs
from tanbr.serve.web.refusals import Refusal, invalid
from tanbr.types import to_jsonable

T = TypeVar("T")


def answer(value: Any) -> Response:
    """Write an answer as JSON."""
    return Response(to_json(value, inf_nan_mode="null"), media_type="application/json")


def view(value: Any) -> Response:
    """Write a view of the service's records as JSON."""
    return answer(to_jsonable(value))


async def settled(future: "Future[T]", *, seconds: float) -> T:
    """Wait for an answer, but not for ever."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
    except TimeoutError:
        raise Refusal.later(504, f"there was no answer within {seconds:g} seconds", seconds=1) from None


def refusal_of(error: Exception) -> Refusal:
    """Say what an error of the service means to a client."""
    match error:
        case Refusal():
            return error
        case RequestValidationError():
            return invalid(error.errors())
        case Overloaded():
            return Refusal.later(429, str(error), seconds=error.retry_after)
        case Stopping() | ServiceError():
            return Refusal.later(503, str(error), seconds=1)
        case InputError():
            return Refusal(422, str(error))
        case TanbrError():  # a full disk, say: the operator's to put right, and not for everybody to read
            logs.say("trouble", level=logging.ERROR, text=str(error))
            return Refusal.later(503, "the server cannot do this now; its log says why", seconds=5)
        case HTTPException(status_code=405, headers=headers):
            allowed = (headers or {}).get("Allow", "another method")
            return Refusal(405, f"use {allowed} here", headers=headers)
        case HTTPException(status_code=404):
            return Refusal(404, "there is nothing at this path; /openapi.json says what there is")
        case HTTPException():
            return Refusal(error.status_code, str(error.detail), headers=error.headers)
    return Refusal(500, "something is wrong with the server; its log says what")


def refuse_with_sentences(app: FastAPI) -> None:
    """Have every error of every route answered by `refusal_of`."""

    async def refuse(request: Request, error: Exception) -> Response:  # noqa: ARG001 - FastAPI's signature
        return refusal_of(error).response()

    for kind in (HTTPException, RequestValidationError, TanbrError, Exception):
        app.add_exception_handler(kind, refuse)
