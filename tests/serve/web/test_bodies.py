import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from serve.web.fake import FakeService
from serve.web.live import client, live, refusal
from tanbr.serve.web import bodies
from tanbr.serve.web.refusals import Refusal
from tanbr.serve.web.strict_json import MOST_KEYS, holds_at_most, read_json

MEGABYTE = 1 << 20
LARGE = {
    "numbers": b'{"inputs": [' + b"1," * (MEGABYTE // 2 - 20) + b"1]}",
    "empty texts": b'{"inputs": [' + b'"",' * (MEGABYTE // 3 - 20) + b'""]}',
    "objects": b'{"feedback": [' + b"{}," * (MEGABYTE // 3 - 20) + b"{}]}",
    "lists": b'{"inputs": [' + b"[]," * (MEGABYTE // 3 - 20) + b"[]]}",
    "keys": b"{" + b",".join(b'"%d":1' % n for n in range(90_000)) + b"}",
    "depth": b"[" * (MEGABYTE - 20),
    "quotes": b'"' * (MEGABYTE - 20),
}


@pytest.mark.parametrize("body", LARGE.values(), ids=LARGE)
def test_a_megabyte_of_values_is_refused_before_one_of_them_is_made(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(*_: Any, **__: Any) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr(json, "loads", parse)
    with pytest.raises(Refusal, match="the body holds more than 9000 values; send it in several requests"):
        read_json(body, most_values=9000)


def test_a_megabyte_of_values_is_one_sentence_at_the_default_limits() -> None:
    with live(FakeService()) as url, client(url) as http:
        for body in LARGE.values():
            answer = http.post("/v1/classify", content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 413
            assert refusal(answer).startswith("the body holds more than ")


def test_the_largest_requests_that_are_allowed_are_read() -> None:
    """At the default limits, with commas, brackets, quotes and backslashes in every text."""
    text = '"a\\", {"b": [1, 2, 3]}, \\\\"' * 8
    with live(FakeService()) as url, client(url) as http:
        inputs = [[text, text]] * 200 + [text] * 0
        assert http.post("/v1/classify", json={"inputs": inputs}).status_code == 200
        items = [{"request_id": f"{text[:30]}{n}", "task": "mood", "label": "good"} for n in range(1000)]
        answer = http.post("/v1/feedback", json={"feedback": items})
        assert answer.json()["unknown"] == 1000


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (b"5", 0),
        (b"[]", 1),
        (b'["a,b", "[{"]', 2),
        (b'["\\\\", "\\""]', 2),  # a backslash ends the first text, a quote is in the second
        (b'{"a": [1, 2], "b": {}}', 5),
    ],
)
def test_values_are_counted_outside_of_texts(body: bytes, values: int) -> None:
    json.loads(body)
    assert holds_at_most(values, body)
    assert values == 0 or not holds_at_most(values - 1, body)


def test_an_object_has_few_keys() -> None:
    fits = {str(n): n for n in range(MOST_KEYS)}
    assert read_json(json.dumps(fits).encode(), most_values=100) == fits
    with pytest.raises(Refusal, match=f"an object with more than {MOST_KEYS} keys"):
        read_json(json.dumps(fits | {"x": 1}).encode(), most_values=100)


@pytest.mark.parametrize("depth", [5_000, 100_000])
@pytest.mark.parametrize("bracket", [(b"[", b"]"), (b'{"a":', b"}")])
def test_what_is_nested_too_deeply_is_refused(depth: int, bracket: tuple[bytes, bytes]) -> None:
    body = bracket[0] * depth + b"1" + bracket[1] * depth
    with pytest.raises(Refusal, match="nested too deeply") as refused:
        read_json(body, most_values=1_000_000)
    assert refused.value.status_code == 400


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (bodies.ClassifyRequest, {"inputs": [1] * 10_000, "labels": [2] * 10_000}),
        (bodies.ClassifyRequest, {"inputs": [[1] * 100] * 100}),
        (bodies.FeedbackRequest, {"feedback": [{}] * 10_000}),
        (bodies.CompletionRequest, {"model": "a", "prompt": [1] * 10_000}),
        (bodies.PinRequest, {"blend": ["x"] * 10_000}),
    ],
)
def test_only_the_first_wrong_item_of_a_list_is_reported(kind: Any, body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(kind).validate_python(body)
    assert refused.value.error_count() <= 2  # one for each list, or for each field of the first item
