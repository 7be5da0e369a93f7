import socket
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from serve.web.fake import FakeService
from serve.web.live import live, wait_for
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


def test_a_stop_leaves_the_service_only_what_is_left_of_its_time() -> None:
    service = FakeService()
    service.stuck = True
    with ThreadPoolExecutor() as pool:
        with live(service, stop_seconds=2, answer_seconds=60) as url:
            waiting = pool.submit(httpx2.post, f"{url}/v1/classify", json={"inputs": ["a"]}, timeout=60)
            wait_for(lambda: service.futures)
        assert service.stopped_within is not None
        assert service.stopped_within <= 1.0  # a second went by for the request that is stuck
        assert waiting.exception() is not None or waiting.result().status_code >= 500


def test_a_stop_with_nothing_under_way_leaves_the_service_its_time() -> None:
    service = FakeService()
    with live(service, stop_seconds=30):
        pass
    assert service.stopped_within is not None
    assert service.stopped_within > 15


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
