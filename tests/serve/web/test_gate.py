import subprocess
import threading
import time
from pathlib import Path

import httpx2
import pytest

from serve.web.fake import FakeService
from serve.web.live import ADMIN_TOKEN, BOTH, TOKEN, client, live, refusal
from tanbr.errors import ConfigError
from tanbr.serve.web.auth import Tokens
from tanbr.serve.web.limits import REMEMBERED, Held, RateLimit, client_of

ONE = {"inputs": ["a"]}


def test_tokens_open_what_they_should() -> None:
    with live(FakeService(), tokens=BOTH) as url, client(url) as nobody:
        for path in ("/", "/healthz", "/readyz", "/dashboard/app.js"):
            assert nobody.get(path).status_code == 200
        for headers in (
            {},
            {"authorization": "Bearer"},
            {"authorization": f"Basic {TOKEN}"},
            {"authorization": f"Bearer {TOKEN}x"},
            {"authorization": "Bearer ÿ".encode("latin-1")},
            {"authorization": TOKEN},
        ):
            for path in ("/v1/state", "/v1/slots", "/metrics", "/openapi.json", "/v1/models", "/nowhere"):
                answer = nobody.get(path, headers=headers)
                assert (answer.status_code, refusal(answer)) == (401, "send a token as `Authorization: Bearer …`")
                assert answer.headers["www-authenticate"].startswith("Bearer")
        with client(url, TOKEN) as somebody, client(url, ADMIN_TOKEN) as operator:
            assert somebody.post("/v1/classify", json=ONE).status_code == 200
            refused = somebody.post("/v1/admin/slot")
            assert refused.status_code == 401
            assert "administration token" in refusal(refused)
            assert operator.post("/v1/admin/slot").status_code == 200
            assert operator.post("/v1/classify", json=ONE).status_code == 200


def test_administration_without_a_token_is_off() -> None:
    with live(FakeService(), tokens=Tokens()) as url, client(url, "x" * 40) as http:
        answer = http.post("/v1/admin/slot")
        assert answer.status_code == 403
        assert refusal(answer).startswith("administration is off")
        assert http.post("/v1/classify", json=ONE).status_code == 200


def test_tokens_are_read_from_files_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    tokens = Tokens.read({"TANBR_ADMIN_TOKEN": ADMIN_TOKEN}, token_file=file)
    assert tokens == BOTH
    assert TOKEN not in repr(tokens)
    assert repr(tokens) == "Tokens()"
    for text, says in (
        ("short", "at least 16"),
        ("with a space in the middle", "without spaces"),
        ("ключ" * 8, "ASCII"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=says):
            Tokens.read({}, token_file=file)
    with pytest.raises(ConfigError, match="cannot read the token"):
        Tokens.read({}, token_file=tmp_path / "none")
    with pytest.raises(ConfigError, match="TANBR_TOKEN must hold"):
        Tokens.read({"TANBR_TOKEN": ""})


def test_a_client_that_asks_too_often_waits() -> None:
    with live(FakeService(), rate=5, burst=3) as url, client(url) as http:
        answers = [http.get("/healthz") for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
        assert refusal(answers[-1]) == "more than 5 requests a second; slow down"
        assert answers[-1].headers["retry-after"] == "1"
        time.sleep(0.5)
        assert http.get("/healthz").status_code == 200


def test_the_rate_is_each_clients_own_and_memory_is_bounded() -> None:
    limit = RateLimit(2.0, 1)
    assert limit.wait("a", 0.0) == 0
    assert limit.wait("a", 0.1) == pytest.approx(0.4)
    assert limit.wait("b", 0.1) == 0
    assert limit.wait("a", 0.6) == 0
    for n in range(2 * REMEMBERED):
        limit.wait(str(n), 1.0)
    assert len(limit._buckets) == REMEMBERED
    assert client_of("10.1.2.3") == "10.1.2.3"
    assert client_of("2001:db8::1") == client_of("2001:db8::ffff") == "2001:db8::/64"
    assert client_of("2001:db8:0:1::1") != client_of("2001:db8::1")


def test_bodies_in_memory_are_counted_and_given_back() -> None:
    held = Held(10)
    assert held.take(8)
    assert not held.take(3)
    held.give_back(8)
    assert held.take(10)


def test_too_many_large_bodies_at_once_are_refused() -> None:
    with live(FakeService(), held_bytes=1 << 20, body_bytes=1 << 20, read_seconds=5) as url:
        big = b'{"inputs": ["' + b"x" * 900_000 + b'"]}'
        slow_started = threading.Event()

        def slowly():  # type: ignore[no-untyped-def]
            yield big
            slow_started.set()
            time.sleep(0.5)
            yield b" "

        with client(url) as one, client(url) as other:
            first: list[httpx2.Response] = []
            headers = {"content-type": "application/json"}
            thread = threading.Thread(
                target=lambda: first.append(one.post("/v1/classify", content=slowly(), headers=headers))
            )
            thread.start()
            slow_started.wait()
            time.sleep(0.2)
            second = other.post("/v1/classify", content=big, headers=headers)
            thread.join()
            assert (second.status_code, refusal(second)) == (429, "too many large requests at once")
            assert first[0].status_code == 422  # read whole; the text is too long
            assert other.post("/v1/classify", content=big, headers=headers).status_code == 422  # room again


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
            assert (answer.status_code, refusal(answer)) == (413, "the body has more than 10000 bytes")
        assert http.post("/v1/classify", json=ONE).status_code == 200


def test_nothing_is_sent_that_is_not_wanted() -> None:
    """curl sends no large body before it is told to go on."""
    with live(FakeService(), body_bytes=10_000) as url:
        done = subprocess.run(
            ["curl", "-s", "-D", "-", "-H", "expect: 100-continue", "-d", "x" * 20_000, f"{url}/v1/classify"],
            capture_output=True, text=True, timeout=20,
        )  # fmt: skip
        assert done.stdout.startswith("HTTP/1.1 413")


def test_a_page_elsewhere_cannot_pretend_to_be_this_server() -> None:
    with live(FakeService(), hosts=("moe.internal",)) as url, client(url) as http:
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", ""):
            answer = http.get("/v1/state", headers={"host": host})
            assert answer.status_code == 421
            assert "loopback" in refusal(answer)
        for host in ("localhost", "LOCALHOST:1234", "[::1]:80", "127.0.0.1", "moe.internal:8000"):
            assert http.get("/v1/state", headers={"host": host}).status_code == 200
        assert (
            "access-control-allow-origin"
            not in http.get("/v1/state", headers={"origin": "https://evil.example"}).headers
        )
        assert "frame-ancestors 'none'" in http.get("/").headers["content-security-policy"]
