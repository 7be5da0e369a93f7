import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from serve.web.fake import FakeService
from serve.web.live import client, live, refusal
from tanbr.serve.web import entrance
from tanbr.serve.web.entrance import REFUSED_BURST
from tanbr.serve.web.refusals import allows

ONE = {"inputs": ["a"]}


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/xml", "multipart/form-data; boundary=x", "", "application/jsonp"]
)
def test_only_json_is_read(http: httpx2.Client, kind: str) -> None:
    answer = http.post("/v1/classify", content=b'{"inputs": ["a"]}', headers={"content-type": kind})
    assert answer.status_code == 415
    assert "application/json" in refusal(answer)


def test_a_client_that_asks_too_often_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now, perf_counter=time.perf_counter)
    monkeypatch.setattr(entrance, "time", clock)
    with live(FakeService(), rate=5, burst=3) as url, client(url) as http:
        answers = [http.get("/v1/state") for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
        assert refusal(answers[-1]) == f"more than 5 requests a second; slow down{allows('rate')}"
        assert answers[-1].headers["retry-after"] == "1"
        assert http.get("/healthz").status_code == http.get("/readyz").status_code == 200  # always
        clock.now += 0.3
        assert [http.get("/v1/state").status_code for _ in range(2)] == [200, 429]


def test_a_client_whose_bodies_are_refused_waits_before_the_next_is_read_and_others_do_not() -> None:
    service, size = FakeService(), REFUSED_BURST // 2
    wrong = b'{"inputs": [7], "x": "' + b"y" * (size - 24) + b'"}'
    assert len(wrong) == size
    with live(service, proxies=("127.0.0.1",), body_bytes=2 * size) as url, client(url) as http:

        def post(address: str, content: bytes) -> httpx2.Response:
            headers = {"content-type": "application/json", "x-forwarded-for": address}
            return http.post("/v1/classify", content=content, headers=headers)

        statuses = [post("192.0.2.1", wrong).status_code for _ in range(5)]
        assert statuses == [422, 422, 422, 429, 429]  # two use up the burst, the third is owed: 16 seconds
        late = post("192.0.2.1", b'{"inputs": ["a"]}')  # nothing is read, whatever it is
        assert late.status_code == 429
        assert "were refused" in refusal(late)
        assert int(late.headers["retry-after"]) >= 1
        assert service.calls == []
        assert post("192.0.2.2", b'{"inputs": ["a"]}').status_code == 200
        assert http.get("/v1/state", headers={"x-forwarded-for": "192.0.2.1"}).status_code == 200


def test_too_many_large_bodies_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    big = b'{"inputs": ["' + b"x" * 900_000 + b'"]}'
    held, answered = threading.Event(), threading.Event()

    class Held(int):
        """The bytes that are in memory; says when the first body is."""

        def __add__(self, more: int) -> "Held":
            if int(self) + more >= len(big):
                held.set()
            return Held(int(self) + more)

        def __sub__(self, less: int) -> "Held":
            return Held(int(self) - less)

    begin = entrance.Entrance.__init__

    def watched(self: Any, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        self._held = Held(0)

    monkeypatch.setattr(entrance, "HELD_BYTES", 1 << 20)
    monkeypatch.setattr(entrance.Entrance, "__init__", watched)
    with live(FakeService(), body_bytes=1 << 20, text_chars=1000, read_seconds=120) as url:

        def slowly() -> Iterator[bytes]:
            yield big
            assert answered.wait(60)
            yield b" "

        def post(content: Any) -> httpx2.Response:
            headers = {"content-type": "application/json"}
            return httpx2.post(f"{url}/v1/classify", content=content, headers=headers, timeout=60)

        with ThreadPoolExecutor() as pool:
            first = pool.submit(post, slowly())
            assert held.wait(60)
            second = post(big)
            answered.set()
            assert (second.status_code, refusal(second)) == (429, "too many large requests at once")
            assert first.result().status_code == 422  # read whole; the text is too long
            assert post(big).status_code == 422  # room again


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_is_too_large_is_read_no_further(declared: bool) -> None:
    with live(FakeService(), body_bytes=10_000) as url, client(url) as http:
        for size in (10_001, 60_000, 5_000_000):
            body = b"x" * size
            parts = (body[at : at + 8192] for at in range(0, size, 8192))
            try:
                answer = http.post("/v1/classify", content=body if declared else parts)
            except httpx2.TransportError:
                assert size == 5_000_000  # hung up on
                continue
            says = f"the body has more than 10000 bytes{allows('body_bytes')}"
            assert (answer.status_code, refusal(answer)) == (413, says)
        assert http.post("/v1/classify", json=ONE).status_code == 200


def test_a_page_elsewhere_cannot_pretend_to_be_this_server() -> None:
    with live(FakeService(), hosts=("moe.internal", "*.moe.lan")) as url, client(url) as http:
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", ""):
            answer = http.get("/v1/state", headers={"host": host})
            assert answer.status_code == 421
            assert "loopback" in refusal(answer)
        for host in ("localhost", "LOCALHOST:1234", "[::1]:80", "127.0.0.1", "moe.internal:8000", "a.moe.lan"):
            assert http.get("/v1/state", headers={"host": host}).status_code == 200
        assert (
            "access-control-allow-origin"
            not in http.get("/v1/state", headers={"origin": "https://evil.example"}).headers
        )
        assert "frame-ancestors 'none'" in http.get("/").headers["content-security-policy"]
