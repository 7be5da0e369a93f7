import json
from typing import Any

import httpx2
import pytest

from serve.web.fake import COLUMNS, TASKS, FakeService
from serve.web.live import ADMIN_TOKEN, client, live, refusal
from tanbr.errors import OutputError
from tanbr.serve.records import Overloaded, ServiceError, Stopping

AS_ADMIN = {"authorization": f"Bearer {ADMIN_TOKEN}"}


def test_texts_and_pairs_are_classified(http: httpx2.Client, service: FakeService) -> None:
    answer = http.post("/v1/classify", json={"inputs": ["a text", ["one", "two"]]}).json()
    assert answer["merge_version"] == service.version
    assert service.calls[-1] == ("submit", ["a text", ("one", "two")])
    assert len({output["request_id"] for output in answer["outputs"]}) == 2
    for output in answer["outputs"]:
        assert set(output) == {"request_id", "label", "score", "scores", "grades"}
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
        (b'{"inputs": [null]}', 422, "inputs[0] must be a text, or a pair of texts in a list"),
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
        (b'{"inputs": [-Infinity]}', 400, "the body is not JSON: -Infinity is not a number there"),
        (b'{"inputs": %s}' % (b"9" * 4000), 422, "inputs must be a valid list"),
        (b"[" * 4000, 400, "the body is nested too deeply"),
        (b"[" * 40 + b"]" * 40, 400, "the body is nested too deeply"),
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


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/xml", "multipart/form-data; boundary=x", "", "application/jsonp"]
)
def test_only_json_is_read(http: httpx2.Client, kind: str) -> None:
    answer = http.post("/v1/classify", content=b'{"inputs": ["a"]}', headers={"content-type": kind})
    assert answer.status_code == 415
    assert "application/json" in refusal(answer)


def test_feedback_counts_once(http: httpx2.Client, service: FakeService) -> None:
    outputs = http.post("/v1/classify", json={"inputs": ["a", "b"]}).json()["outputs"]
    first, second = (output["request_id"] for output in outputs)
    items: list[dict[str, Any]] = [{"request_id": first, "reward": 1}, {"request_id": "made up", "reward": 0.5}]
    answer = http.post("/v1/feedback", json={"feedback": items}).json()
    assert answer == {"accepted": 1, "repeated": 0, "unknown": 1, "outcomes": ["accepted", "unknown"]}
    items = [{"request_id": first, "reward": 0}, {"request_id": second, "task": "mood", "label": "good"}]
    answer = http.post("/v1/feedback", json={"feedback": items}).json()
    assert answer["outcomes"] == ["repeated", "accepted"]
    kept = [service.given[name] for name in (first, second)]
    assert kept[0] is not None
    assert kept[0].reward == 1  # the first one counts
    assert kept[1] is not None
    assert (kept[1].task, kept[1].label, kept[1].reward) == ("mood", "good", None)


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"request_id": "r", "reward": 1.01}, "feedback[0].reward must be less than or equal to 1"),
        ({"request_id": "r", "reward": -0.1}, "feedback[0].reward must be greater than or equal to 0"),
        ({"request_id": "r", "reward": "1"}, "feedback[0].reward must be a valid number"),
        ({"request_id": "r", "reward": True}, "feedback[0].reward must be a valid number"),
        ({"request_id": "r"}, "feedback[0].reward is missing"),
        ({"reward": 1}, "feedback[0].request_id is missing"),
        ({"request_id": "r", "label": "good"}, "feedback[0].task is missing"),
        ({"request_id": "r", "reward": 1, "label": "good", "task": "mood"}, "feedback[0].reward is not known here"),
        (
            {"request_id": "r", "reward": 1, "task": "gossip"},
            f"unknown task 'gossip'; the model knows {', '.join(TASKS)}",
        ),
        (["r", 1], "feedback[0] must be an object with a request_id, and a reward or a task and label"),
    ],
)
def test_feedback_that_means_nothing_is_refused(http: httpx2.Client, item: Any, says: str) -> None:
    answer = http.post("/v1/feedback", json={"feedback": [item]})
    assert answer.status_code == 422
    assert refusal(answer) == says


def test_a_huge_reward_is_refused_before_it_is_infinite(http: httpx2.Client) -> None:
    body = b'{"feedback": [{"request_id": "r", "reward": 1e999}]}'
    answer = http.post("/v1/feedback", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert refusal(answer) == "feedback[0].reward must be less than or equal to 1"


def test_the_state_is_shown(http: httpx2.Client, service: FakeService) -> None:
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
    assert http.get("/v1/latency").json()["windows"][-1]["requests"] > 0
    assert json.loads(http.get("/healthz").text) == json.loads(http.get("/readyz").text) == {"status": "ok"}


def test_strange_paths_and_methods_are_told_where_to_go(http: httpx2.Client) -> None:
    for method, path, status, says in (
        ("GET", "/v2/classify", 404, "there is nothing at this path; /openapi.json says what there is"),
        ("GET", "/dashboard/..%2fapp.py", 404, "there is nothing at this path; /openapi.json says what there is"),
        ("GET", "/dashboard/app.py", 404, "there is no such part of the dashboard"),
        ("GET", "/v1/classify", 405, "use POST here"),
        ("DELETE", "/v1/state", 405, "use GET here"),
        ("POST", "/v1/completions", 404, "the model here classifies: use /v1/classify"),
        ("GET", "/v1/models/gpt-9", 404, "the model here is 'fake'"),
        ("GET", "/v1/slots?limit=0", 422, "limit must be greater than or equal to 1"),
        ("GET", "/v1/slots?before=1e3", 422, "before must be a valid integer, unable to parse string as an integer"),
    ):
        answer = http.request(method, path)
        assert (answer.status_code, refusal(answer)) == (status, says)
    assert http.get("/v1/models").json()["data"][0]["id"] == "fake"


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
        ("pin", {}, "merge_version is missing"),
        ("pin", {"blend": [1, 0, 0, 0], "merge_version": 1}, "merge_version is not known here"),
        ("pin", [1], "the body must be an object with blend or merge_version"),
    ):
        answer = admin(action, body)
        assert (answer.status_code, refusal(answer)) == (422, says)
    assert admin("rollback").json()["merge_version"] == 2  # no body: the one before
    service.version = 3


@pytest.mark.parametrize(
    ("error", "status", "says", "retry"),
    [
        (Overloaded(2.3), 429, "too many requests are waiting; try again in 2.3 seconds", "3"),
        (Stopping("the server is stopping"), 503, "the server is stopping", "1"),
        (ServiceError("the batch failed; send it again"), 503, "the batch failed; send it again", "1"),
        (
            OutputError("cannot write /somewhere/secret: No space left on device"),
            503,
            "the server cannot do this now",
            "5",
        ),
        (RuntimeError("secret"), 500, "something is wrong with the server; its log says what", None),
    ],
)
def test_trouble_of_the_service_is_told_without_its_secrets(
    http: httpx2.Client, service: FakeService, error: Exception, status: int, says: str, retry: str | None
) -> None:
    service.failing = error
    try:
        for path, body in (
            ("/v1/classify", {"inputs": ["a"]}),
            ("/v1/feedback", {"feedback": [{"request_id": "r", "reward": 1}]}),
        ):
            answer = http.post(path, json=body)
            assert answer.status_code == status
            assert refusal(answer).startswith(says)
            assert answer.headers.get("retry-after") == retry
            assert "secret" not in answer.text
    finally:
        service.failing = None


def test_an_answer_that_does_not_come_is_given_up(http: httpx2.Client, service: FakeService) -> None:
    service.stuck = True
    try:
        answer = http.post("/v1/classify", json={"inputs": ["a"]})
        assert answer.status_code == 504
        assert refusal(answer) == "there was no answer within 0.3 seconds"
    finally:
        service.stuck = False


def test_a_service_that_is_not_ready_says_so() -> None:
    service = FakeService()
    with live(service) as url, client(url) as http:
        service.ready = False
        for path in ("/readyz",):
            answer = http.get(path)
            assert (answer.status_code, refusal(answer)) == (503, "the server is starting or stopping")
        assert http.get("/healthz").status_code == 200
