from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from pydantic import ValidationError

from serve.serving import Ledger
from serve.serving import service as real_service
from serve.web.fake import FakeService
from serve.web.live import BOTH, TOKEN, client, live, refusal, wait_for
from tanbr.loop.config import RewardConfig
from tanbr.loop.rewards import Given, Tally, Trust, credited
from tanbr.serve.records import Feedback
from tanbr.serve.web.auth import Tokens
from tanbr.serve.web.config import HttpConfig

ITEM = {"feedback": [{"request_id": "r", "reward": 1}]}


def test_feedback_counts_once(http: httpx2.Client, service: FakeService) -> None:
    outputs = http.post("/v1/classify", json={"inputs": ["a", "b"]}).json()["outputs"]
    first, second = (output["request_id"] for output in outputs)
    items: list[dict[str, Any]] = [{"request_id": first, "reward": 1}, {"request_id": "made up", "reward": 0.5}]
    answer = http.post("/v1/feedback", json={"feedback": items}).json()
    assert answer == {"accepted": 1, "repeated": 0, "unknown": 1, "outcomes": ["accepted", "unknown"]}
    items = [{"request_id": first, "reward": 0}, {"request_id": second, "task": "mood", "label": "good"}]
    answer = http.post("/v1/feedback", json={"feedback": items}).json()
    assert answer["outcomes"] == ["repeated", "accepted"]
    assert service.given[first] == Feedback(first, reward=1)  # the first one counts
    assert service.given[second] == Feedback(second, task="mood", label="good")


def test_tensorzeros_names_mean_the_same_in_a_list_or_alone(http: httpx2.Client, service: FakeService) -> None:
    outputs = http.post("/v1/classify", json={"inputs": ["a", "b", "c"]}).json()["outputs"]
    ids = [output["request_id"] for output in outputs]
    theirs: list[dict[str, Any]] = [
        {"metric_name": "solved", "inference_id": name, "value": value}
        for name, value in zip(ids, (True, 0.5, 0), strict=True)
    ]
    assert http.post("/v1/feedback", json={"feedback": theirs[:2]}).json()["accepted"] == 2
    assert http.post("/v1/feedback", json=theirs[2]).json()["accepted"] == 1
    assert [service.given[name].reward for name in ids] == [1, 0.5, 0]
    assert refusal(http.post("/v1/feedback", json=theirs[2] | {"dryrun": True})).startswith("feedback[0].dryrun ")


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ('{"inference_id": "r", "value": "a comment"}', ".reward must be a valid number"),
        ('{"inference_id": "r", "request_id": "r", "reward": 1}', ".inference_id"),
        ('{"request_id": "r"}', " must have a reward, or a task and a label"),
        ('{"request_id": "r", "reward": 1.01}', ".reward must be less than or equal to 1"),
        ('{"request_id": "r", "reward": true}', ".reward must be a valid number"),
        ('{"request_id": "r", "reward": NaN}', ".reward must be a finite number"),
        ('{"request_id": "r", "label": NaN, "task": "likeness"}', ".label"),
        ('{"reward": 1}', ".request_id is missing"),
        ('{"request_id": "r", "label": "good"}', " must have a reward, or a task and a label"),
        ('{"request_id": "r", "reward": 1, "label": "good", "task": "mood"}', " must have a reward, or a task and"),
        ('{"request_id": "r", "reward": 1, "task": "gossip"}', ".task must be 'mood', 'topic' or 'likeness'"),
    ],
)
def test_feedback_that_means_nothing_is_refused(http: httpx2.Client, item: str, says: str) -> None:
    body = f'{{"feedback": [{item}]}}'
    answer = http.post("/v1/feedback", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert refusal(answer).startswith(f"feedback[0]{says}")


HEADERS = ["", "?", "Bearer", "x"] + [f"{scheme} {n}" for scheme in ("bEaReR", "Basic", "Bearer") for n in range(20)]


def test_a_client_that_leaves_while_its_feedback_waits_for_the_disk_is_no_success() -> None:
    service = FakeService()
    with live(service) as url, client(url) as http:
        service.disk.clear()
        with pytest.raises(httpx2.ReadTimeout):
            http.post("/v1/feedback", json=ITEM, timeout=0.2)
        service.disk.set()
        wait_for(lambda: '"/v1/feedback",status="' in http.get("/metrics").text)
        assert '"/v1/feedback",status="499"' in http.get("/metrics").text


@pytest.mark.parametrize("tokens", [Tokens(), BOTH])
def test_one_address_is_one_client_whatever_it_writes_into_its_header(tokens: Tokens) -> None:
    service, shown = FakeService(), HEADERS
    if tokens is BOTH:
        shown = [f"{scheme}{space}{TOKEN}" for scheme in ("Bearer", "bEaReR", "BEARER") for space in (" ", "  ", "   ")]
    with live(service, tokens=tokens, proxies=("127.0.0.1",)) as url, client(url) as http:

        def say(address: str, header: str) -> None:
            headers = {"x-forwarded-for": f"198.51.100.1, {address}", "authorization": header}
            assert http.post("/v1/feedback", json=ITEM, headers=headers).status_code == 200

        for number in range(64):  # of one /64, and naming others in front of its own address
            say(f"2001:db8::{number:x}", shown[number % len(shown)])
        for number in range(8):
            say(f"192.0.2.{number}", shown[0])
    keys = service.given_by
    assert len(set(keys)) == 9
    assert all(len(key) == 16 and "192.0" not in key and TOKEN not in key for key in keys)  # opaque
    rows = [Given(0, 0, 0, "feedback", 0, float(number >= 64), None, key) for number, key in enumerate(keys)]
    for trust, least in ((Trust(), 0.8), (Trust().learned(rows, np.ones(1)), 0.999)):  # its share, 0.2; then found out
        (tally,) = credited([Tally(1)], rows, np.ones(1), trust)
        assert tally.reward(RewardConfig())[0][0] >= least - 1e-9


def test_nobody_may_name_every_address_a_proxy() -> None:
    assert HttpConfig(proxies=("10.0.0.0/8", "::1")).proxies
    with pytest.raises(ValidationError):  # then a client would be whoever it says it is
        HttpConfig(proxies=("*",))


def test_a_client_has_the_same_key_after_a_restart(tmp_path: Path, taught: Path) -> None:
    for _ in range(2):
        running = real_service(tmp_path, taught, router=Ledger())
        with live(running) as url, client(url) as http:
            (output,) = http.post("/v1/classify", json={"inputs": ["a fine film"]}).json()["outputs"]
            item = {"request_id": output["request_id"], "reward": 1}
            assert http.post("/v1/feedback", json={"feedback": [item]}).json()["accepted"] == 1
            keys = [row.client for row in running.store.feedback(after=0)]
    assert len(keys) == 2
    assert len(set(keys)) == 1
