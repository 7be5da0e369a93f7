import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from serve.web.fake import EXPERTS, TASKS, FakeService
from serve.web.live import ADMIN_TOKEN, client, live, refusal, wait_for

AS_ADMIN = {"authorization": f"Bearer {ADMIN_TOKEN}"}


def test_strange_paths_and_methods_are_told_where_to_go(http: httpx2.Client) -> None:
    for method, path, status, says in (
        ("GET", "/v2/classify", 404, "there is nothing at this path; /openapi.json says what there is"),
        ("GET", "/dashboard/..%2fapp.py", 404, "there is nothing at this path; /openapi.json says what there is"),
        ("GET", "/dashboard/../app.py", 404, "there is nothing at this path; /openapi.json says what there is"),
        ("GET", "/v1/classify", 405, "use POST here"),
        ("DELETE", "/v1/state", 405, "use GET here"),
        ("POST", "/v1/completions", 404, "the model here classifies: use /v1/classify"),
        ("GET", "/v1/slots?limit=0", 422, "limit must be greater than or equal to 1"),
        ("GET", "/v1/slots?before=1e3", 422, "before must be a valid integer, unable to parse string as an integer"),
    ):
        answer = http.request(method, path)
        assert (answer.status_code, refusal(answer)) == (status, says)
    assert http.get("/v1/models").json()["data"][0]["id"] == "fake"


def test_the_state_is_shown(http: httpx2.Client, service: FakeService) -> None:
    http.post("/v1/classify", json={"inputs": ["a", "b"]})
    state = http.get("/v1/state").json()
    assert {"slot", "merge_version", "task_mix", "blend", "reward"} <= set(state)
    assert sum(state["task_mix"]) == pytest.approx(1)
    assert sum(state["blend"]) == pytest.approx(1)
    assert len(state["task_mix"]) == len(state["reward"]) == len(state["tasks"]) == len(TASKS)
    assert state["last_pause_seconds"] is None  # NaN is no JSON
    slots = http.get("/v1/slots", params={"limit": 3}).json()["slots"]
    assert [slot["slot"] for slot in slots] == [29, 28, 27]
    earlier = http.get("/v1/slots", params={"limit": 2, "before": 27}).json()["slots"]
    assert [slot["slot"] for slot in earlier] == [26, 25]
    assert None in earlier[1]["reward"]  # a task that was not seen
    versions = http.get("/v1/versions").json()["versions"]
    assert [version["merge_version"] for version in versions] == [3, 2, 1, 0]
    (least,) = http.get("/v1/clients", params={"limit": 1}).json()["clients"]
    assert least == {"client": "shop", "trust": 0.1, "leads": False}
    windows = http.get("/v1/latency").json()["windows"]
    requests, texts = (sum(window[what] for window in windows) for what in ("requests", "texts"))
    assert requests > 0
    assert texts >= requests + 1  # one request held two
    assert state["why"] == {
        "sentence": "it promises most for the mix at hand", "mean": 0.71, "uncertainty": 0.04, "bound": 0.78,
    }  # fmt: skip
    assert (state["phase"], state["model"]["expert_names"]) == ("learning", list(EXPERTS))
    assert (state["administration"], state["model"]["saves_from"]) == (True, None)  # they save memory now
    assert json.loads(http.get("/healthz").text) == json.loads(http.get("/readyz").text) == {"status": "ok"}


def test_supervisors_hear_of_a_dead_thread_and_of_a_service_that_is_not_ready() -> None:
    service = FakeService()
    with live(service) as url, client(url) as http:
        service.ready = False
        answer = http.get("/readyz")
        assert (answer.status_code, refusal(answer)) == (503, "the server is starting or stopping")
        assert http.get("/healthz").status_code == 200
        service.ready = True
        service.broken = ("the front thread died: RuntimeError('/somewhere/secret')",)
        for path in ("/healthz", "/readyz"):
            answer = http.get(path)
            says = "a part of the server has failed: restart it; its log says which"
            assert (answer.status_code, refusal(answer)) == (503, says)
        service.broken = ()
        assert http.get("/readyz").status_code == 200


def test_nobody_waits_for_feedback_that_is_stuck() -> None:
    service, item = FakeService(), {"feedback": [{"request_id": "r", "reward": 1}]}
    with live(service, stop_seconds=2) as url, client(url) as http, ThreadPoolExecutor(60) as pool:
        service.disk.clear()
        sent = [pool.submit(httpx2.post, f"{url}/v1/feedback", json=item, timeout=60) for _ in range(60)]
        try:
            wait_for(lambda: service.given_by)
            for path in ("/metrics", "/healthz", "/readyz", "/v1/state"):
                assert http.get(path).status_code == 200
            assert not any(one.done() for one in sent)
        finally:
            service.disk.set()
        assert {one.result().status_code for one in sent} == {200}


def test_operators_steer(http: httpx2.Client, service: FakeService) -> None:
    def admin(action: str, body: Any = None) -> httpx2.Response:
        return http.post(f"/v1/admin/{action}", json=body, headers=AS_ADMIN)

    assert admin("pin", {"merge_version": 2}).json() == {"slot": 30, "merge_version": 3, "pinned": True}
    assert admin("unpin").json()["pinned"] is False
    assert admin("pin", {"blend": [0.5, 0.5, 0, 0]}).json()["pinned"] is True
    assert service.calls[-1] == ("pin", [0.5, 0.5, 0.0, 0.0])
    assert admin("unpin").json()["pinned"] is False
    assert admin("rollback", {"merge_version": 3}).json()["merge_version"] == 3
    assert service.calls[-1] == ("rollback", 3)
    assert admin("slot").json()["slot"] == 30
    assert service.calls[-1] == ("end_slot",)
    for action, body, says in (
        ("rollback", {"merge_version": 99}, "there is no merge version 99 to serve; the last is 3"),
        ("rollback", {"merge_version": -1}, "merge_version must be greater than or equal to 0"),
        ("pin", {"blend": [0.5, 0.5, 0.5, 0]}, "blend must sum to 1 (got 1.5); divide it by its sum"),
        ("pin", {"blend": [0.5, 0.5]}, "blend must have at least 4 items, not 2"),
        ("pin", {}, "the body must have either a blend or a merge_version"),
        ("pin", {"blend": [1, 0, 0, 0], "merge_version": 1}, "the body must have either a blend or a merge_version"),
        ("pin", [1], "the body must be an object"),
    ):
        answer = admin(action, body)
        assert (answer.status_code, refusal(answer)) == (422, says)
    assert admin("rollback").json()["merge_version"] == 2  # no body: the one before
    service.version = 3
