from typing import Any

import httpx2
import pytest

from serve.web.fake import TASKS, FakeService
from serve.web.live import ADMIN_TOKEN, BOTH, TOKEN, client, live, refusal
from tanbr.serve.web.feedback import ClientKeys


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


def test_feedback_comes_with_an_opaque_key_of_its_client() -> None:
    service = FakeService()
    item = {"feedback": [{"request_id": "r", "reward": 1}]}
    with live(service, tokens=BOTH, proxies=("127.0.0.1",)) as url, client(url, TOKEN) as http:
        for address, token in (
            ("10.0.0.1", TOKEN),
            ("10.0.0.1", TOKEN),
            ("10.0.0.2", TOKEN),
            ("10.0.0.1", ADMIN_TOKEN),
        ):
            headers = {"x-forwarded-for": address, "authorization": f"Bearer {token}"}
            assert http.post("/v1/feedback", json=item, headers=headers).status_code == 200
    first, again, elsewhere, operator = service.clients
    assert first == again
    assert len({first, elsewhere, operator}) == 3
    assert all(len(key) == 16 and "10.0" not in key and TOKEN not in key for key in service.clients)


def test_keys_of_one_secret_are_alike_at_every_replica() -> None:
    scope = {"type": "http", "client": ("192.0.2.7", 4711)}
    one, other, stranger = ClientKeys(b"s" * 16), ClientKeys(b"s" * 16), ClientKeys()
    assert one.of(scope, "Bearer x") == other.of(scope, "Bearer x") != stranger.of(scope, "Bearer x")
