"""Requests drawn from the server's own document, by schemathesis and by benchmarks/hostile.py."""

import sys
from pathlib import Path

import pytest

from serve.web.fake import COLUMNS, TASKS, FakeService
from serve.web.live import ADMIN_TOKEN, BOTH, TOKEN, client, live

with pytest.MonkeyPatch.context() as _patched:  # a file there hides tests/'s folder of its name
    _patched.setattr("sys.path", [*sys.path, str(Path(__file__).parents[3] / "benchmarks")])
    import hostile


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


@pytest.mark.parametrize(("kind", "only"), [("classifier", None), ("text", "/v1/completions")])
def test_schemathesis_finds_the_server_as_described(kind: str, only: str | None, tmp_path: Path) -> None:
    with live(FakeService(kind), tokens=BOTH) as url:  # type: ignore[arg-type]
        found = hostile.schemathesis(
            url, tmp_path, examples=1, phases="examples,coverage", only=only, admin_token=ADMIN_TOKEN
        )
    assert found["passed"], found["report"]
    assert found["cases"] > 30


def test_the_document_knows_this_model_and_these_limits() -> None:
    with live(FakeService(), tokens=BOTH, inputs=7, text_chars=99) as url, client(url, TOKEN) as http:
        document = http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    fields = schemas["ClassifyRequest"]["properties"]
    one, pair = fields["inputs"]["items"]["oneOf"]
    assert (fields["inputs"]["maxItems"], one["maxLength"], pair["items"]["maxLength"]) == (7, 99, 99)
    assert fields["labels"]["anyOf"][0]["items"]["enum"] == list(COLUMNS[:3])
    assert fields["task"]["anyOf"][0]["enum"] == list(TASKS)
    assert "/v1/completions" not in document["paths"]  # this model classifies
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation.get("description"), path
            refused = operation["responses"]["default"]["content"]["application/json"]["schema"]
            assert refused == {"$ref": "#/components/schemas/ErrorResponse"}, path
    assert document["paths"]["/v1/admin/pin"]["post"]["security"] == [{"admin": []}]
    assert "security" not in document["paths"]["/healthz"]["get"]
