import httpx2
import pytest

from serve.web.fake import COLUMNS, LONGEST, FakeService
from serve.web.live import client, live, refusal


def test_texts_and_pairs_are_classified(http: httpx2.Client, service: FakeService) -> None:
    answer = http.post("/v1/classify", json={"inputs": ["a text", ["one", "two"]]}).json()
    assert answer["merge_version"] == service.version
    assert service.calls[-1] == ("submit", ["a text", ("one", "two")])
    assert len({output["request_id"] for output in answer["outputs"]}) == 2
    for output in answer["outputs"]:
        assert set(output) == {"request_id", "label", "score", "scores", "tokens_cut", "grades"}
        assert list(output["scores"]) == list(COLUMNS[:3])  # labels; the graded task is no label
        assert sum(output["scores"].values()) == pytest.approx(1, abs=1e-5)
        assert output["score"] == max(output["scores"].values()) == output["scores"][output["label"]]
        assert output["grades"] == {"likeness": 2.5}  # a logit of 0 is the middle of its scale


def test_labels_restrict_the_answer(http: httpx2.Client) -> None:
    outputs = http.post("/v1/classify", json={"inputs": ["a text"], "labels": ["sport", "good"]}).json()["outputs"]
    assert outputs[0]["label"] == "good"
    assert set(outputs[0]["scores"]) == {"sport", "good"}
    assert sum(outputs[0]["scores"].values()) == pytest.approx(1, abs=1e-5)
    strange = http.post("/v1/classify", json={"inputs": ["a text"], "labels": ["likeness"]})
    assert strange.status_code == 422
    assert refusal(strange) == "labels must be some of bad, good, sport (got 'likeness')"


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 422, "the body is missing"),
        (b"5", 422, "the body must be an object"),
        (b"{}", 422, "inputs is missing"),
        (b'{"inputs": []}', 422, "inputs must have at least 1 item, not 0"),
        (b'{"inputs": "a"}', 422, "inputs must be a valid list"),
        (b'{"inputs": [5]}', 422, "inputs[0] must be a text, or a pair of texts in a list"),
        (b'{"inputs": [""]}', 422, "inputs[0] must have at least 1 character"),
        (b'{"inputs": [["a"]]}', 422, "inputs[0] must have at least 2 items, not 1"),
        (b'{"inputs": [["a", 1]]}', 422, "inputs[0][1] must be a valid string"),
        (b'{"inputs": ["a"], "colour": 1}', 422, "colour is not known here"),
        (b'{"inputs": ["a"], "labels": []}', 422, "labels must have at least 1 item, not 0"),
        (b'{"inputs": ["a", "a", "a", "a", "a"]}', 422, "inputs must have at most 4 items (got 5)"),
        (b'{"inputs": ["a", "%s"]}' % (b"x" * 101), 422, "inputs[1] must have at most 100 characters"),
        (b'{"inputs": ["\\ud800"]}', 422, "inputs[0] must be a valid string, unable to parse raw data"),
        (b'{"inputs": ["a"], "inputs": ["b"]}', 400, "the body has an object with the same key twice"),
        (b'{"inputs": [NaN]}', 400, "the body is not JSON: NaN is not a number there"),
        (b'{"inputs": %s}' % (b"9" * 4000), 422, "inputs must be a valid list"),
        (b"[" * 4000, 413, "the body holds more than 111 values; send it in several requests"),
        (b"[" * 40 + b"]" * 40, 422, "the body must be an object"),
        (b'{"inputs": ["a"]', 400, "the body is not JSON: Expecting ',' delimiter at character 16"),
        (b'{"inputs": ["\xff"]}', 400, "the body is not UTF-8: invalid start byte at byte 13"),
        (b'\xef\xbb\xbf{"inputs": ["a"]}', 400, "the body is not JSON: Unexpected UTF-8 BOM"),
        ('{"inputs": ["a"]}'.encode("utf-16"), 400, "the body is not UTF-8"),
        (b'{"inputs": ["\x00"]}', 400, "the body is not JSON: Invalid control character at"),
        (b'{"inputs": ["%s"]}' % (b"x" * 5000), 413, "the body has more than 4096 bytes"),
    ],
)
def test_what_is_wrong_with_a_body_is_one_sentence(http: httpx2.Client, body: bytes, status: int, says: str) -> None:
    answer = http.post("/v1/classify", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert refusal(answer).startswith(says)
    assert http.post("/v1/classify", json={"inputs": ["still there"]}).status_code == 200


def test_a_number_with_too_many_digits_is_refused() -> None:
    with live(FakeService()) as url, client(url) as http:
        body = b'{"inputs": %s}' % (b"9" * 5000)
        answer = http.post("/v1/classify", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        assert refusal(answer) == "the body holds a number with too many digits"


def test_each_answer_says_how_much_of_its_text_was_cut(http: httpx2.Client) -> None:
    long = " ".join(["a"] * (LONGEST + 3))
    outputs = http.post("/v1/classify", json={"inputs": ["a text", long]}).json()["outputs"]
    assert [output["tokens_cut"] for output in outputs] == [0, 3]
