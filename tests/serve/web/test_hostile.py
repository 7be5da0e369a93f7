"""A few hundred of the hostile requests of benchmarks/hostile.py, at the default limits."""

from serve.web.fake import FakeService
from serve.web.hostile import hostile
from serve.web.live import client, live


def test_every_hostile_request_is_refused_with_a_sentence() -> None:
    service = FakeService()
    with live(service) as url:
        tally = hostile.attack(url, requests=400, seed=5)
        crowded = hostile.crowd(url, connections=150)
        with client(url) as http:
            assert http.post("/v1/classify", json={"inputs": ["still there"]}).status_code == 200
    assert not tally.wrong, tally.wrong[:3]
    assert tally.sent == 400
    families = {name.split()[0] for name in tally.statuses}
    assert families == {"documented", "mutated_value", "mutated_bytes", "spliced", "leaving", "large"}
    assert not any(call[0] in ("pin", "rollback", "end_slot") for call in service.calls)  # nobody had the token
    assert crowded["health_answered"] == crowded["health_asked"]
    assert crowded["other_client_answered"] == crowded["health_asked"]


def test_a_wrong_answer_would_be_noticed() -> None:
    judged = hostile.judged
    assert judged(500, b'{"error": {"message": "x"}}') == "status 500"
    assert judged(404, b"Not Found") == "404 without a sentence"
    assert judged(422, b'{"error": {"message": "a\\nb"}}') == "422 with an odd sentence"
    assert judged(503, b'{"error": {"message": "busy"}}') is None
    tally = hostile.Tally()
    tally.note(hostile.Attack("raw", b"x"), [])
    assert tally.wrong


def test_answers_are_told_apart() -> None:
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    head = b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 90\r\n\r\n"  # to HEAD: no body
    assert list(hostile.parsed(data + head + data)) == [(200, b"{}"), (405, b""), (200, b"{}")]
