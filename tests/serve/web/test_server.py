import json
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from serve.web.fake import FakeService
from serve.web.live import live, refusal, wait_for
from tanbr.errors import ConfigError
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.server import address_of, bind


def test_an_address_is_taken_as_soon_as_it_is_bound() -> None:
    with bind(HttpConfig(port=0)) as first:
        url, loopback = address_of(first)
        assert loopback
        with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:.*Address already in use"):
            bind(HttpConfig(port=int(url.rpartition(":")[2])))
    with bind(HttpConfig(port=int(url.rpartition(":")[2]))) as again:
        assert address_of(again)[0] == url  # free again, and at once


def test_a_stop_leaves_the_service_what_is_left_of_its_time() -> None:
    service = FakeService()
    with live(service, stop_seconds=30):
        pass
    assert service.stopped_within is not None
    assert 15 < service.stopped_within <= 30
    service.stuck = True
    with ThreadPoolExecutor() as pool:
        with live(service, stop_seconds=2, answer_seconds=60) as url:
            waiting = pool.submit(httpx2.post, f"{url}/v1/classify", json={"inputs": ["a"]}, timeout=60)
            wait_for(lambda: service.futures)
        assert service.stopped_within <= 1.0  # a second went by for the request that is stuck
        assert waiting.result().status_code == 503


def test_what_a_stop_breaks_off_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    service = FakeService("text")
    body = {"model": "fake", "prompt": "go on and on"}
    with ThreadPoolExecutor() as pool, httpx2.Client(timeout=60) as http:
        with live(service, stop_seconds=2, answer_seconds=60) as url:
            whole = pool.submit(httpx2.post, f"{url}/v1/completions", json=body, timeout=60)
            streaming = http.send(
                http.build_request("POST", f"{url}/v1/completions", json=body | {"stream": True}), stream=True
            )
            lines = streaming.iter_lines()
            begun = [next(lines) for _ in range(2)]
            wait_for(lambda: len(service.futures) == 2)
        events = [line for line in [*begun, *lines] if line]
    assert whole.result().status_code == 503
    assert "the server stops" in refusal(whole.result())
    assert whole.result().headers["retry-after"] == "1"
    assert json.loads(begun[0].removeprefix("data: "))["choices"][0]["text"] == "GO"
    assert events[-1] == "data: [DONE]"
    assert "the server stops" in json.loads(events[-2].removeprefix("data: "))["error"]["message"]
    assert all(future.cancelled() for future in service.futures)  # nothing more is written for them
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no sockets for both families")
def test_ipv4_clients_of_a_socket_for_both_families_have_a_rate_each() -> None:
    with live(FakeService(), host="::", rate=0.001, burst=1) as url:
        port = int(url.rpartition(":")[2])
        statuses = []
        for address in ("127.0.0.1", "127.0.0.2", "127.0.0.1"):
            transport = httpx2.HTTPTransport(local_address=address)
            with httpx2.Client(transport=transport) as http:
                statuses.append(http.get(f"http://127.0.0.1:{port}/v1/state").status_code)
        assert statuses == [200, 200, 429]
