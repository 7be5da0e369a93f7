import time
from types import SimpleNamespace

import httpx2
import pytest

from serve.web.fake import FakeService
from serve.web.live import client, live, refusal
from tanbr.serve.web import entrance
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
