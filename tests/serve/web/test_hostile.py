"""A few hundred of the hostile requests of benchmarks/hostile.py."""

from serve.web.fake import FakeService
from serve.web.hostile import hostile
from serve.web.live import client, live
from tanbr.serve.web.auth import Tokens


def test_every_hostile_request_is_refused_with_a_sentence() -> None:
    service = FakeService()
    tokens = Tokens.read({"TANBR_TOKEN": hostile.TOKEN, "TANBR_ADMIN_TOKEN": hostile.ADMIN_TOKEN})
    limits = {"read_seconds": 2.0, "body_bytes": 65536, "text_chars": 2000, "inputs": 64, "connections": 64}
    with live(service, tokens=tokens, **limits) as url:
        tally = hostile.attack(url, requests=400, seed=5)
        with client(url, hostile.TOKEN) as http:
            assert http.post("/v1/classify", json={"inputs": ["still there"]}).status_code == 200
    assert not tally.wrong, tally.wrong[:3]
    assert tally.sent == 400
    families = {name.split()[0] for name in tally.statuses}
    assert families == {make.__name__ for make, _ in hostile.FAMILIES}
    assert not any(call[0] in ("pin", "rollback", "end_slot") for call in service.calls)  # nobody had the token


def test_a_wrong_answer_would_be_noticed() -> None:
    judged = hostile.judged
    assert judged(500, b'{"error": {"message": "x"}}', method=b"GET /") == "status 500"
    assert judged(404, b"Not Found", method=b"GET /") == "404 without a sentence"
    assert judged(422, b'{"error": {"message": "a\\nb"}}', method=b"POST ") == "422 with an odd sentence"
    assert judged(503, b'{"error": {"message": "busy"}}', method=b"POST ") is None
    tally = hostile.Tally()
    tally.note(hostile.Attack("raw", b"x"), [])
    assert tally.wrong
