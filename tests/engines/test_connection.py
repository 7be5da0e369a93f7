import asyncio
import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import repeat
from typing import Any

import pytest

from engines.fake_engine import FakeVllm
from tanbr.engines.connection import Connection, EngineLost, EngineRefused
from tanbr.errors import ConfigError


@pytest.mark.parametrize("url", ["", "localhost:80", "ftp://here", "http://", "http://[::1", "http://me:pass@here"])
def test_what_is_no_address_is_one_sentence(url: str) -> None:
    with pytest.raises(ConfigError, match="an engine's URL must be like"):
        Connection(url)


def test_a_stream_that_breaks_off_is_a_loss(vllm: FakeVllm) -> None:
    connection = Connection(vllm.url)
    vllm.slow.set()
    begun = threading.Event()

    async def stream() -> None:
        asked = {"model": "dense", "prompt": [5], "max_tokens": 9, "stream": True, "return_token_ids": True}
        async for _ in connection.events(
            "/v1/completions", asked | {"temperature": 0, "ignore_eos": True, "stop_token_ids": []}
        ):
            begun.set()

    waiting = connection.start(stream())
    assert begun.wait(30)
    vllm.kill()
    with pytest.raises(EngineLost):
        waiting.result(30)
    vllm.start()
    connection.close()


class Hostile:
    """A server that sends a head and then whatever a test says, to the end or until nobody listens."""

    def __init__(self, head: str, body: Callable[[], Iterator[bytes]]) -> None:
        self._head, self._body = head.replace("\n", "\r\n").encode() + b"\r\n\r\n", body
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.heard = b""
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        client, _ = self._socket.accept()
        with client, suppress(OSError):
            self.heard = client.recv(65536)
            client.sendall(self._head)
            for part in self._body():
                client.sendall(part)
            self._ends.wait()

    @contextmanager
    def asked(self, *, token: str | None = None) -> Iterator[Connection]:
        self._thread.start()
        connection = Connection(self.url, token=token)
        try:
            yield connection
        finally:
            self._ends.set()
            connection.close()
            self._thread.join()
            self._socket.close()


async def heard(connection: Connection) -> list[Any]:
    return [event async for event in connection.events("/v1/completions", {"stream": True})]


OK = "HTTP/1.1 200 OK\ncontent-type: application/json"
COMPRESSED = gzip.compress(b"[" + b" " * 1_000_000 + b"]")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("head", "part", "says"),
    [
        (OK, b"1" * 65536, "more than .* bytes"),
        ("HTTP/1.1 400 Bad Request", b"1" * 65536, "more than .* bytes"),
        (f"{OK}\ncontent-encoding: gzip", COMPRESSED, "is compressed"),
    ],
)
def test_an_answer_without_bounds_is_not_read(head: str, part: bytes, says: str, streamed: bool) -> None:
    with Hostile(head, lambda: repeat(part)).asked() as connection, pytest.raises(EngineLost, match=says) as error:
        connection.call(heard(connection) if streamed else connection.ask("GET", "/v1/models"))
    assert len(str(error.value)) < 200


def test_an_answer_that_never_ends_is_given_up_though_something_always_comes() -> None:
    def drops() -> Iterator[bytes]:
        while True:
            time.sleep(0.01)
            yield b" "

    with Hostile(OK, drops).asked() as connection, pytest.raises(EngineLost, match="did not answer /slow in time"):
        connection.call(connection.ask("POST", "/slow", seconds=0.2))


def test_a_stream_that_goes_on_after_its_end_has_ended() -> None:
    with Hostile(OK, lambda: iter([b'data: {"a": 1}\r\n\r\ndata: [DO', b"NE]\n\n: more\n"])).asked() as connection:
        assert connection.call(heard(connection)) == [{"a": 1}]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_key_that_the_engine_repeats_is_struck_out(streamed: bool) -> None:
    def echo() -> Iterator[bytes]:
        said = json.dumps({"error": {"message": server.heard.decode()}}).encode()
        yield b"%x\r\n%s\r\n0\r\n\r\n" % (len(said), said)

    server = Hostile("HTTP/1.1 400 Bad Request\ntransfer-encoding: chunked", echo)
    with server.asked(token="a-secret-token") as connection, pytest.raises(EngineRefused) as error:
        connection.call(heard(connection) if streamed else connection.ask("GET", "/v1/models"))
    said = str(error.value)
    assert "uthorization: B" in said  # it was repeated
    assert "a-secret-token" not in said


def test_what_waits_is_given_up_when_it_is_closed() -> None:
    connection = Connection("http://127.0.0.1:9")
    waiting = connection.start(asyncio.sleep(1000))
    connection.close()
    connection.close()
    assert waiting.cancelled()
    with pytest.raises(EngineLost, match="was closed"):
        connection.call(connection.ask("GET", "/v1/models"))
