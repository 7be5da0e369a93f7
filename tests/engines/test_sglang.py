from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from engines.fake_engine import FakeSglang
from tanbr.engines.connection import Connection, EngineLost
from tanbr.engines.dialect import EngineRefused, Piece
from tanbr.engines.sglang import Sglang
from tanbr.serve.decode import NotFinite

# The contract is that of SGLang's documentation and source (`UpdateWeightFromDiskReqInput`, `GenerateReqInput`).
# There is no build of it for CPUs, and nobody has asked a real one.


def test_one_call_loads_labels_and_flushes(sglang: FakeSglang, dense: Path) -> None:
    connection = Connection(sglang.url)
    dialect = Sglang(connection)
    sglang.cache[(1, 2)] = [(3, -1.0)]
    connection.call(dialect.load(dense, "one"))
    assert (connection.call(dialect.label()), sglang.cache, sglang.loads) == ("one", {}, 1)
    sglang.refuses = "shapes differ"
    with pytest.raises(EngineRefused, match="shapes differ"):
        connection.call(dialect.load(dense, "two"))
    assert connection.call(dialect.label()) == "one"
    connection.close()


def test_what_it_serves_is_asked_for(sglang: FakeSglang, dense: Path) -> None:
    connection = Connection(sglang.url)
    served = connection.call(Sglang(connection).served())
    assert (served.model, served.positions, served.dtype, served.quantised) == (str(dense), 64, "float32", None)
    sglang.dtype = "auto"  # as it is started by default: it does not say what that came to
    assert connection.call(Sglang(connection).served()).dtype is None
    connection.close()


class Script(Connection):
    """An engine that streams what it is told to."""

    def __init__(self, *events: Any) -> None:
        super().__init__("http://127.0.0.1:9")
        self._said = events

    async def events(self, path: str, body: Any) -> AsyncGenerator[Any]:
        for event in self._said:
            yield event


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ({"meta_info": {"output_token_logprobs": [[None, 3, None]], "completion_tokens": 1}}, NotFinite),
        ({"error": {"message": "out of memory"}}, EngineLost),
        (
            {"meta_info": {"output_token_logprobs": [], "completion_tokens": 0, "finish_reason": {"type": "abort"}}},
            EngineLost,
        ),
        ({"text": "no tokens"}, EngineLost),
    ],
)
def test_what_is_no_answer_is_an_error(event: Any, error: type[Exception]) -> None:
    connection = Script(event)

    async def pieces() -> list[Piece]:
        return [piece async for piece in Sglang(connection).write([1], 5, ())]

    with pytest.raises(error):
        connection.call(pieces())
    connection.close()
