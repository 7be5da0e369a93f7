"""Bodies read strictly: UTF-8 JSON with each key once, and finite numbers.

How many values a body holds is counted before any of them is made: a megabyte may hold half a million.
"""

import json
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute

from tanbr.serve.web.refusals import Refusal

MOST_KEYS = 32  # of one object; no request has more than half


def read_json(body: bytes, *, most_values: int) -> Any:
    """Parse a body, or refuse it with the reason."""
    if not holds_at_most(most_values, body):
        raise Refusal(413, f"the body holds more than {most_values} values; send it in several requests")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    try:
        return json.loads(text, object_pairs_hook=_each_once, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise Refusal(400, f"the body is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:  # a thousand levels or so; what is less deep costs nothing, and no model has it
        raise Refusal(400, "the body is nested too deeply") from None
    except ValueError:  # Python reads no whole number of more than 4300 digits
        raise Refusal(400, "the body holds a number with too many digits") from None


def holds_at_most(most: int, body: bytes) -> bool:
    """Count the strings, lists, objects and commas outside of strings, with nothing but searches through bytes."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # every quote left begins or ends a string
    if plain.count(b'"') > 4 * most:  # a key and a value for each, at most
        return False
    outside = b"".join(plain.split(b'"')[::2])
    return outside.count(b",") + outside.count(b"[") + outside.count(b"{") <= most


def strict_route(most_values: int) -> type[APIRoute]:
    """Make a kind of route that reads its body with `read_json`."""

    class StrictRequest(Request):
        async def json(self) -> Any:
            return read_json(await self.body(), most_values=most_values)

    class StrictRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def handle_strictly(request: Request) -> Response:
                return await handle(StrictRequest(request.scope, request.receive))

            return handle_strictly

    return StrictRoute


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MOST_KEYS:
        raise Refusal(400, f"the body has an object with more than {MOST_KEYS} keys")
    made = dict(pairs)
    if len(made) < len(pairs):
        raise Refusal(400, "the body has an object with the same key twice")
    return made


def _no_constant(name: str) -> NoReturn:
    raise Refusal(400, f"the body is not JSON: {name} is not a number there")
