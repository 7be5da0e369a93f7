import io
import re
import socket

import httpx2
import pytest

from serve.web.fake import FakeService
from serve.web.live import client, live, place_of, refusal, wait_for
from tanbr.errors import InputError, OutputError
from tanbr.serve.records import Overloaded, ServiceError, Stopping
from tanbr.serve.web import logs


@pytest.mark.parametrize(
    ("error", "status", "says", "retry"),
    [
        (Overloaded(2.3), 429, "too many requests are waiting; try again in 2.3 seconds", "3"),
        (Stopping("the server is stopping"), 503, "the server is stopping", "1"),
        (
            ServiceError("the batch failed: RuntimeError('/somewhere/secret')"),
            503,
            "this could not be answered, and is safe to send again; the server's log says why (fault ",
            "1",
        ),
        (
            OutputError("cannot write /somewhere/secret: No space left on device"),
            503,
            "the server cannot do this now; the server's log says why (fault ",
            "5",
        ),
        (RuntimeError("secret"), 500, "something is wrong with the server; its log says what (fault ", None),
    ],
)
def test_trouble_of_the_service_is_told_without_its_secrets(
    http: httpx2.Client,
    service: FakeService,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: int,
    says: str,
    retry: str | None,
) -> None:
    monkeypatch.setattr(service, "failing", error)
    stream = io.StringIO()
    logs.to_stream(stream)
    for path, body in (
        ("/v1/classify", {"inputs": ["a"]}),
        ("/v1/feedback", {"feedback": [{"request_id": "r", "reward": 1}]}),
    ):
        answer = http.post(path, json=body)
        assert answer.status_code == status
        assert refusal(answer).startswith(says)
        assert answer.headers.get("retry-after") == retry
        assert "secret" not in answer.text
        if fault := re.search(r"\(fault (\w+)\)", answer.text):
            (line,) = [line for line in stream.getvalue().splitlines() if fault[1] in line]
            assert "secret" in line


def test_an_answer_that_does_not_come_is_given_up(
    http: httpx2.Client, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "stuck", True)
    answer = http.post("/v1/classify", json={"inputs": ["a"]})
    assert (answer.status_code, refusal(answer)) == (504, "there was no answer within 0.3 seconds")


@pytest.mark.parametrize("requests", [1, 2])  # one after another, on one connection
def test_a_client_that_leaves_cancels_its_request(requests: int) -> None:
    service = FakeService()
    service.stuck = True
    with live(service, answer_seconds=60) as url:
        body = b'{"inputs": ["a"]}'
        head = b"POST /v1/classify HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        with socket.create_connection(place_of(url)) as connection:
            connection.sendall((head + b"content-length: %d\r\n\r\n" % len(body) + body) * requests)
            wait_for(lambda: service.futures)
            assert not service.futures[0].cancelled()  # it waits, and so does the server
        wait_for(service.futures[0].cancelled)
        with client(url) as http:
            assert '"/v1/classify",status="499"' in http.get("/metrics").text


def test_a_sentence_that_repeats_what_was_sent_stays_short(
    http: httpx2.Client, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = InputError(f"the label must be good or bad (got {'x' * 20_000!r}); send one of them")
    monkeypatch.setattr(service, "failing", error)
    says = refusal(http.post("/v1/classify", json={"inputs": ["a"]}))
    assert len(says) < 320
    assert says.startswith("the label must be good or bad")
    assert says.endswith("send one of them")
