"""How a request is refused: a status, and one sentence in JSON, in the shape that OpenAI's clients read."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

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

WORDS = {
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
        message = f"{where or 'the body'} {_plainly(str(problem['msg']))}"
    return Refusal(422, message, param=where or None)


def _plainly(says: str) -> str:
    """Put pydantic's words for a problem behind a name: `must be a valid string`."""
    for words, plain in WORDS.items():
        says = says.replace(words, plain, 1)
    return says


def _place(loc: Sequence[Any]) -> str:
    """Write where a value stands, as `inputs[3]`: pydantic adds the names of a union's branches, which say nothing."""
    place = ""
    for part in loc[1:]:  # the first is "body", "query" or "path"
        if isinstance(part, int):
            place += f"[{part}]"
        elif not part.startswith(":"):
            place += f".{part}" if place else part
    return place[:120]
