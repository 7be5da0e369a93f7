from typing import Any

import httpx2
import pytest
from fastapi.exceptions import RequestValidationError

from serve.web.fake import COLUMNS, LONGEST, FakeService
from serve.web.live import client, live, refusal
from tanbr.serve.web import refusals
from tanbr.serve.web.bodies import MOST_KEYS

JSON = {"content-type": "application/json"}
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


def test_texts_and_pairs_are_classified(http: httpx2.Client, service: FakeService) -> None:
    long = " ".join(["a"] * (LONGEST + 3))
    answer = http.post("/v1/classify", json={"inputs": ["a text", ["one", "two"], long]}).json()
    assert answer["merge_version"] == service.version
    assert service.calls[-1] == ("submit", ["a text", ("one", "two"), long])
    assert len({output["request_id"] for output in answer["outputs"]}) == 3
    assert [output["tokens_cut"] for output in answer["outputs"]] == [0, 0, 3]
    for output in answer["outputs"]:
        assert list(output["scores"]) == list(COLUMNS[:3])  # labels; the graded task is no label
        assert sum(output["scores"].values()) == pytest.approx(1, abs=1e-5)
        assert output["score"] == max(output["scores"].values()) == output["scores"][output["label"]]
        assert output["grades"] == {"likeness": 2.5}  # a logit of 0 is the middle of its scale
        assert output["merge_version"] == service.version


def test_labels_restrict_the_answer(http: httpx2.Client) -> None:
    outputs = http.post("/v1/classify", json={"inputs": ["a text"], "labels": ["sport", "good"]}).json()["outputs"]
    assert outputs[0]["label"] == "good"
    assert set(outputs[0]["scores"]) == {"sport", "good"}
    assert sum(outputs[0]["scores"].values()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 422, "the body is missing"),
        (b"5", 422, "the body must be an object"),
        (b'{"inputs": []}', 422, "inputs must have at least 1 item, not 0"),
        (b'{"inputs": [["a", 1]]}', 422, "inputs[0][1] must be a valid string"),
        (b'{"inputs": ["a"], "colour": 1}', 422, "colour is not known here"),
        (b'{"inputs": ["a"], "labels": ["likeness"]}', 422, "labels[0] must be 'bad', 'good' or 'sport'"),
        (b'{"inputs": ["a"], "task": "gossip"}', 422, "task must be 'mood', 'topic' or 'likeness'"),
        (
            b'{"inputs": ["a", "a", "a", "a", "a"]}',
            422,
            "inputs must have at most 4 items, not 5; the server's [http] inputs allows more",
        ),
        (
            b'{"inputs": ["a", "%s"]}' % (b"x" * 101),
            422,
            "inputs[1] must have at most 100 characters; the server's [http] text_chars allows more",
        ),
        (b'{"inputs": ["\\ud800"]}', 422, "inputs[0] must be a valid string, unable to parse raw data"),
        (b'{"inputs": %s}' % (b"9" * 4000), 422, "inputs must be a valid list"),
        (b"[" * 4000, 400, "the body is not UTF-8, is nested too deeply, or has a number with too many digits"),
        (b'{"inputs": ["a"]', 400, "the body is not JSON: Expecting ',' delimiter at character 16"),
        (b'{"inputs": ["\xff"]}', 400, "the body is not UTF-8"),
        ('{"inputs": ["a"]}'.encode("utf-16"), 400, "the body is not JSON in UTF-8"),
        (b'{"inputs": ["\x01"]}', 400, "the body is not JSON: Invalid control character at"),
        (
            b'{"inputs": ["%s"]}' % (b"x" * 5000),
            413,
            "the body has more than 4096 bytes; the server's [http] body_bytes allows more",
        ),
    ],
)
def test_what_is_wrong_with_a_body_is_one_sentence(http: httpx2.Client, body: bytes, status: int, says: str) -> None:
    answer = http.post("/v1/classify", content=body, headers=JSON)
    assert (answer.status_code, refusal(answer)[: len(says)]) == (status, says)
    assert http.post("/v1/classify", json={"inputs": ["still there"]}).status_code == 200


def test_the_largest_bodies_at_the_default_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is allowed is read; of what is not, no value is made, or only the first mistake is written down."""
    text, mistakes = '"a\\", {"b": [1, 2, 3]}, \\\\"' * 8, list[int]()
    real = refusals.refusal_of

    def counted(error: Any) -> refusals.Refusal:
        mistakes.append(len(error.errors()) if isinstance(error, RequestValidationError) else 1)
        return real(error)

    monkeypatch.setattr(refusals, "refusal_of", counted)
    with live(FakeService()) as url, client(url) as http:
        assert http.post("/v1/classify", json={"inputs": [[text, text]] * 200}).status_code == 200
        items = [{"request_id": f"{text[:30]}{n}", "task": "mood", "label": "good"} for n in range(1000)]
        assert http.post("/v1/feedback", json={"feedback": items}).json()["unknown"] == 1000
        for path, body in (
            ("classify", {"inputs": [1] * 4000, "labels": [2] * 3000}),
            ("classify", {"inputs": [[1] * 100] * 70}),
            ("classify", {"inputs": ["a"]} | {str(n): n for n in range(MOST_KEYS)}),
            ("feedback", {"feedback": [{}] * 3000}),
        ):
            assert http.post(f"/v1/{path}", json=body).status_code == 422
        assert max(mistakes) <= 2  # one for each list, or for each field of the first item
        answer = http.post("/v1/classify", content=b'{"inputs": [%s]}' % (b"9" * 5000), headers=JSON)
        assert (answer.status_code, refusal(answer)[-29:]) == (400, "a number with too many digits")
        for large in LARGE.values():
            answer = http.post("/v1/classify", content=large, headers=JSON)
            assert (answer.status_code, refusal(answer)[:24]) == (413, "the body holds more than")
