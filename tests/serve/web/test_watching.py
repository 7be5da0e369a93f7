import io
import json
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from serve.web.fake import EXPERTS, TASKS, FakeService
from serve.web.live import client, live, refusal, wait_for
from tanbr.serve.web import logs


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
    few = http.get("/v1/tree", params={"limit": 20}).json()
    assert few["total"] > len(few["nodes"]) >= 20
    assert few["nodes"][0]["parent"] == -1
    assert all(node["parent"] < at for at, node in enumerate(few["nodes"]))  # parents first, and all of them there
    windows = http.get("/v1/latency").json()["windows"]
    requests, texts = (sum(window[what] for window in windows) for what in ("requests", "texts"))
    assert requests > 0
    assert texts >= requests + 1  # one request held two
    assert state["why"] == {
        "sentence": "it promises most for the mix at hand", "mean": 0.71, "uncertainty": 0.04, "bound": 0.78,
    }  # fmt: skip
    assert (state["phase"], state["model"]["expert_names"]) == ("learning", list(EXPERTS))
    assert json.loads(http.get("/healthz").text) == json.loads(http.get("/readyz").text) == {"status": "ok"}


def test_a_service_that_is_not_ready_says_so() -> None:
    service = FakeService()
    with live(service) as url, client(url) as http:
        service.ready = False
        for path in ("/readyz",):
            answer = http.get(path)
            assert (answer.status_code, refusal(answer)) == (503, "the server is starting or stopping")
        assert http.get("/healthz").status_code == 200


def test_a_dead_thread_is_told_to_supervisors_and_named_in_the_log() -> None:
    service, stream = FakeService(), io.StringIO()
    logs.to_stream(stream)
    with live(service) as url, client(url) as http:
        service.broken = ("the front thread died: RuntimeError('/somewhere/secret')",)
        for path in ("/healthz", "/readyz", "/healthz"):
            answer = http.get(path)
            assert answer.status_code == 503
            assert refusal(answer) == "a part of the server has failed: restart it; its log says which"
        told = [line["text"] for line in map(json.loads, stream.getvalue().splitlines()) if line["event"] == "fault"]
        assert told == list(service.broken)  # once, however often it is asked
        service.broken = ()
        assert http.get("/readyz").status_code == 200


def test_supervisors_do_not_wait_for_feedback_that_is_stuck() -> None:
    service = FakeService()
    item = {"feedback": [{"request_id": "r", "reward": 1}]}
    with live(service, stop_seconds=2) as url, client(url) as http, ThreadPoolExecutor(60) as pool:
        service.disk.clear()
        stuck = [pool.submit(httpx2.post, f"{url}/v1/feedback", json=item, timeout=60) for _ in range(60)]
        try:
            wait_for(lambda: len(service.clients) == 8)  # as many threads as feedback has
            for path in ("/metrics", "/healthz", "/readyz", "/v1/state"):
                assert http.get(path).status_code == 200
            assert not any(one.done() for one in stuck)
        finally:
            service.disk.set()
        assert all(one.result().status_code == 200 for one in stuck)
