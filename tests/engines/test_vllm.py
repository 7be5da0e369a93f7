import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from engines.fake_engine import MODEL, FakeVllm
from engines.record import FILE, answered, exchanges
from tanbr.engines.connection import EngineLost, EngineRefused
from tanbr.engines.dialect import Piece
from tanbr.engines.remote import _Streams
from tanbr.engines.vllm import CHANGING, Vllm
from tanbr.serve.decode import NotFinite, Written

RECORDED: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))


def invented(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """Where one value holds what the other has not, or of another type; numbers are numbers."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        new = [f"{where}.{name}" for name in ours.keys() - theirs.keys()]
        return new + [
            one for name in ours.keys() & theirs.keys() for one in invented(ours[name], theirs[name], f"{where}.{name}")
        ]
    if isinstance(ours, list) and isinstance(theirs, list):
        return [one for mine in ours[:1] for one in invented(mine, theirs[0] if theirs else None, f"{where}[]")]
    kinds = [
        int if isinstance(value, bool) else float if isinstance(value, int | float) else type(value)
        for value in (ours, theirs)
    ]
    return [] if kinds[0] is kinds[1] else [f"{where}: {ours!r}, not {theirs!r}"]


def test_the_fake_engine_says_nothing_that_a_real_one_does_not(vllm: FakeVllm, dense: Path) -> None:
    asked = exchanges(MODEL, str(dense))
    assert [(one["method"], one["path"]) for one in RECORDED] == [(method, path) for method, path, _ in asked]
    with httpx2.Client(base_url=vllm.url) as http:
        for (method, path, body), real in zip(asked, RECORDED, strict=True):
            ours = answered(http, method, path, body)
            assert ours["status"] == real["status"], path
            assert invented(ours, {name: real[name] for name in ours}) == [], path


class Script(Vllm):
    """An engine that streams what it is told to."""

    def __init__(self, *events: Any) -> None:
        super().__init__("http://127.0.0.1:9")
        self._said = events

    async def events(self, path: str, body: Any) -> AsyncGenerator[Any]:
        for event in self._said:
            yield event


def heard(*events: Any) -> list[Piece]:
    async def pieces() -> list[Piece]:
        return [piece async for piece in engine.write([1], 5, ())]

    with closing(Script(*events)) as engine:
        return engine.call(pieces())


def test_the_recorded_stream_is_read() -> None:
    stream = next(one["events"] for one in RECORDED if "events" in one)
    pieces = heard(*[event for event in stream if event != "[DONE]"])
    assert [len(piece.tokens) for piece in pieces] == [1] * len(pieces)
    assert [piece.end for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert all(value < 0 for piece in pieces for value in piece.logprobs)


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ({"choices": [{"token_ids": [0], "logprobs": {"token_logprobs": [None]}, "finish_reason": None}]}, NotFinite),
        ({"choices": [{"token_ids": [0], "logprobs": None, "finish_reason": None}]}, NotFinite),
        ({"error": {"message": "Out of range float values are not JSON compliant"}}, NotFinite),
        ({"error": {"message": "EngineCore died"}}, EngineLost),
        ({"choices": [{"text": "no tokens"}]}, EngineLost),
        ({"choices": ["what"]}, EngineLost),
        (["what"], EngineLost),
    ],
)
def test_what_is_no_answer_is_an_error(event: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        heard(event)


@pytest.fixture
def engine(vllm: FakeVllm) -> Iterator[Vllm]:
    with closing(Vllm(vllm.url)) as made:
        yield made


def test_weights_have_no_version_while_they_change(engine: Vllm, vllm: FakeVllm, dense: Path) -> None:
    seen: list[tuple[str, bool]] = []
    load = vllm.load

    def watched(folder: str) -> None:
        seen.append((vllm.label, vllm.paused))
        load(folder)

    vllm.load = watched  # type: ignore[method-assign]
    engine.call(engine.load(dense, "one"))
    assert seen == [(CHANGING, True)]
    assert (engine.call(engine.label()), vllm.paused) == ("one", False)
    vllm.refuses = "no"
    with pytest.raises(EngineLost, match="500: no"):
        engine.call(engine.load(dense, "two"))
    assert (engine.call(engine.label()), vllm.paused) == (CHANGING, False)
    vllm.refuses, vllm.busy = "", True
    with pytest.raises(EngineRefused, match="did not forget"):
        engine.call(engine.load(dense, "two"))
    assert (engine.call(engine.label()), vllm.paused) == (CHANGING, False)


@pytest.mark.parametrize("said", [[], 3, None])
def test_a_label_that_is_none_is_no_version(said: Any, engine: Vllm, vllm: FakeVllm) -> None:
    vllm.routes["/weight_info"] = vllm.routes["/is_paused"] = lambda *_: said
    assert engine.call(engine.label()) == "None"
    engine.call(engine.wake())


@pytest.mark.parametrize(
    ("piece", "confidence"),
    [
        (Piece((5,), (3.0,), "length"), 1.0),  # a probability of 20
        (Piece((5, 1), (0.0, -50.0), "stop"), 0.5),
        (Piece((2**40,), (-1.0,), "length"), None),
        (Piece((-1,), (-1.0,), "length"), None),
        (Piece(("w1",), (-1.0,), "length"), None),  # type: ignore[arg-type]
    ],
)
def test_tokens_are_tokens_and_probabilities_at_most_one(piece: Piece, confidence: float | None) -> None:
    class Saying(Vllm):
        async def write(self, *_: Any) -> AsyncGenerator[Piece]:
            yield piece

    with closing(Saying("http://127.0.0.1:9")) as engine:
        streams = _Streams(engine, [[1]], [2], frozenset({1}), ())
        if confidence is None:
            with pytest.raises(EngineLost, match="what is no token"):
                streams.hear(lambda: None, lambda _: ())
        else:
            (written,) = streams.hear(lambda: None, lambda _: ())
            assert written == Written((5,), piece.end == "stop", pytest.approx(confidence))
