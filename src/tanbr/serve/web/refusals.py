"""How a request is refused: a status, and one sentence in JSON, in the shape that OpenAI's clients read.

Clients are not told what only the operator should read: it goes to the log, under an id that the sentence names.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tanbr.errors import InputError, TanbrError
from tanbr.serve.records import Overloaded, ServiceError, Stopping
from tanbr.serve.web import logs

LONGEST = 300  # characters of a sentence

CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    413: "too_large",
    415: "not_json",
    421: "wrong_host",
    422: "invalid",
    429: "too_many_requests",
    431: "head_too_large",
    499: "client_left",
    500: "internal",
    503: "unavailable",
    504: "timeout",
}

WORDS = {  # pydantic's words for a problem → ours, which come behind a name: `inputs must be a valid list`
    "Input should": "must",
    "List should": "must",
    "String should": "must",
    " after validation": "",
    "be a valid dictionary or object to extract fields from": "be an object",
}


class Refusal(HTTPException):
    """A request that is not answered."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.param, self.code = param, code or CODES.get(status, "error")

    @classmethod
    def later(cls, status: int, message: str, *, seconds: float) -> "Refusal":
        """Refuse what may be sent again after so many seconds."""
        return cls(status, message, headers={"retry-after": str(max(1, math.ceil(seconds)))})

    def body(self) -> bytes:
        """Write the error as JSON."""
        kind = "server_error" if self.status_code >= 500 else "invalid_request_error"
        return to_json({"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}})

    def response(self) -> Response:
        """Make the answer."""
        return Response(self.body(), self.status_code, self.headers, "application/json")


def invalid(errors: Sequence[Any]) -> Refusal:
    """Say in one sentence what is wrong first with a request that its model did not accept."""
    problem = errors[0]
    where = _place(problem["loc"])
    if problem["type"] == "not_done":
        return Refusal(400, f"{where} {problem['msg']}", param=where, code="unsupported_parameter")
    if problem["type"] == "missing":
        message = f"{where or 'the body'} is missing"
    elif problem["type"] == "extra_forbidden":
        message = f"{where} is not known here"
    else:
        says = str(problem["msg"])
        for words, plain in WORDS.items():
            says = says.replace(words, plain, 1)
        message = f"{where or 'the body'} {says}"
    return Refusal(422, message, param=where or None)


def _place(loc: Sequence[Any]) -> str:
    """Write where a value stands, as `inputs[3]`: pydantic adds the names of a union's branches, which say nothing."""
    place = ""
    for part in loc[1:]:  # the first is "body", "query" or "path"
        if isinstance(part, int):
            place += f"[{part}]"
        elif not part.startswith(":"):
            place += f".{part}" if place else part
    return place[:120]


def shortened(sentence: str) -> str:
    """Cut what a client sent out of the middle of a sentence that repeats it."""
    return sentence if len(sentence) <= LONGEST else f"{sentence[: LONGEST // 2]} … {sentence[-LONGEST // 2 :]}"


def refusal_of(error: Exception) -> Refusal:
    """Say what an error means to a client."""
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
