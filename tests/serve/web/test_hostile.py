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
