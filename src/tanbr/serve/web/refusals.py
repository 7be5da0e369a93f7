"""How a request is refused: a status, and one sentence in JSON, in the shape that OpenAI's clients read.

Clients are not told what only the operator should read: it goes to the log, under an id that the sentence names.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import from_json, to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tanbr.errors import InputError, TanbrError
from tanbr.serve.records import EngineAnswer, Overloaded, ServiceError, Shown, Stopping
from tanbr.serve.web import logs

LONGEST = 300  # characters of a sentence
DONE = b"data: [DONE]\n\n"  # the end of a stream
WORDS = {  # pydantic's words for a problem → ours, which come behind a name: `inputs must be a valid list`
    "Input should": "must",
    "List should": "must",
    "String should": "must",
    " after validation": "",
    "be a valid dictionary or object to extract fields from": "be an object",
}
MORE = {  # a limit and where it holds → the setting that allows more
    ("too_long", "inputs"): "inputs",
    ("too_long", "prompt"): "inputs",
    ("less_than_equal", "n"): "inputs",
    ("string_too_long", "inputs"): "text_chars",
    ("string_too_long", "prompt"): "text_chars",
}


@dataclass(frozen=True)
class ErrorDetail(Shown):
    """Why not."""

    message: str
    """One sentence."""
    type: str
    param: str | None
    """Which part of the request."""
    code: str | int | None
    """For programs, where the status alone does not say it: model_not_found, unsupported_parameter, …"""


@dataclass(frozen=True)
class ErrorResponse(Shown):
    """A refusal, in the shape that OpenAI's clients read."""

    error: ErrorDetail


class Refusal(HTTPException):
    """A request that is not answered; with `retry`, it may be sent again after so many seconds."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | int | None = None,
        headers: Mapping[str, str] | None = None,
        retry: float | None = None,
    ) -> None:
        later = {} if retry is None else {"retry-after": str(max(1, math.ceil(retry)))}
        super().__init__(status, message, {**(headers or {}), **later})
        self.param, self.code = param, code

    @classmethod
    def model(cls, name: str) -> "Refusal":
        """Refuse to be another model than the one of this name."""
        return cls(404, f"the model here is {name!r}", param="model", code="model_not_found")

    @property
    def shown(self) -> ErrorResponse:
        """What the client gets."""
        kind = "server_error" if self.status_code >= 500 else "invalid_request_error"
        return ErrorResponse(ErrorDetail(self.detail, kind, self.param, self.code))

    def response(self) -> Response:
        """Make the answer."""
        return Response(to_json(self.shown), self.status_code, self.headers, "application/json")


def in_stream(value: Any) -> bytes:
    """Write a value as an event of a stream."""
    return b"data: " + to_json(value) + b"\n\n"


def allows(setting: str) -> str:
    """End a sentence about a limit: what an operator would change."""
    return f"; the server's [http] {setting} allows more"


def shortened(sentence: str) -> str:
    """Cut what a client sent out of the middle of a sentence that repeats it."""
    return sentence if len(sentence) <= LONGEST else f"{sentence[: LONGEST // 2]} … {sentence[-LONGEST // 2 :]}"


def invalid(problem: Mapping[str, Any]) -> Refusal:
    """Say in one sentence what is wrong with a request that its model did not accept."""
    says, where = str(problem["msg"]), ""
    for part in problem["loc"][1:]:  # the first is "body", "query" or "path"
        if isinstance(part, int):
            where += f"[{part}]"
        elif not part.startswith(":"):  # the names of a union's branches say nothing
            where += f".{part}" if where else part
    match problem["type"]:
        case "not_done":
            return Refusal(400, shortened(says), param=problem["ctx"]["name"][:120], code="unsupported_parameter")
        case "json_invalid":
            return Refusal(400, f"the body is not JSON: {problem['ctx']['error']} at character {problem['loc'][1]}")
        case "missing":
            says = "is missing"
        case "extra_forbidden":
            says = "is not known here"
    for words, plain in WORDS.items():
        says = says.replace(words, plain, 1)
    setting = MORE.get((problem["type"], where.partition("[")[0]))
    says += allows(setting) if setting else ""
    where = where[:120]
    return Refusal(422, shortened(f"{where or 'the body'} {says}"), param=where or None)


def refusal_of(error: Exception) -> Refusal:
    """Say what an error means to a client."""
    match error:
        case Refusal():
            return error
        case RequestValidationError():
            return invalid(error.errors()[0])
        case EngineAnswer():
            return _passed_on(error)
        case Overloaded():
            return Refusal(429, str(error), retry=error.retry_after)
        case Stopping():
            return Refusal(503, str(error), retry=1)
        case InputError():
            return Refusal(422, shortened(str(error)))
        case TanbrError():
            fault = f"the server's log says why (fault {logs.say_fault(str(error), error=error.__cause__)})"
            if isinstance(error, ServiceError):
                return Refusal(503, f"this could not be answered, and is safe to send again; {fault}", retry=1)
            return Refusal(503, f"the server cannot do this now; {fault}", retry=5)  # a full disk, say
        case HTTPException(status_code=405, headers=headers):
            allowed = (headers or {}).get("Allow", "another method")
            return Refusal(405, f"use {allowed} here", headers=headers)
        case HTTPException(status_code=404):
            return Refusal(404, "there is nothing at this path; /openapi.json says what there is")
        case HTTPException(status_code=400):  # FastAPI's, for what Python's parser of JSON does not read
            return Refusal(400, "the body is not UTF-8, is nested too deeply, or has a number with too many digits")
        case HTTPException():
            return Refusal(error.status_code, str(error.detail), headers=error.headers)
    fault = logs.say_fault(type(error).__name__, error=error)
    return Refusal(500, f"something is wrong with the server; its log says what (fault {fault})")


def _passed_on(answer: EngineAnswer) -> Refusal:
    """Pass an engine's own refusal on, with its status, sentence and code."""
    try:
        said = from_json(answer.body)["error"]
        param, code = said.get("param"), said.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        param = code = None
    return Refusal(answer.status, str(answer), param=param, code=code, retry=1 if answer.status in (429, 503) else None)


def refuse_with_sentences(app: FastAPI) -> None:
    """Have every error of every route answered by `refusal_of`."""

    async def refuse(request: Request, error: Exception) -> Response:  # noqa: ARG001 - FastAPI's signature
        return refusal_of(error).response()

    for kind in (HTTPException, RequestValidationError, TanbrError, Exception):
        app.add_exception_handler(kind, refuse)
