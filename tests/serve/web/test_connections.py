"""What comes before there is a request: raw bytes on a socket."""

import io
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from serve.web.fake import FakeService
from serve.web.live import live, place_of, wait_for
from tanbr.serve.web import logs

GET = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
CLASSIFY = (
    b"POST /v1/classify HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
)


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    with live(FakeService(), read_seconds=0.5, connections=20) as url:
        yield place_of(url)


def talk(address: tuple[str, int], *parts: bytes, pause: float = 0.0) -> bytes:
    """Send, and read until the server hangs up or says no more for a while."""
    with socket.create_connection(address, timeout=3) as connection:
        for part in parts:
            try:
                connection.sendall(part)
            except OSError:
                break
            time.sleep(pause)
        connection.settimeout(5)  # a busy machine may be slow to answer at all
        answer = b""
        try:
            while chunk := connection.recv(65536):
                answer += chunk
                connection.settimeout(0.7)
        except TimeoutError:
            pass
        return answer


def split(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",  # TLS
        b"GET /\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\na: b\x00c\r\n\r\n",
        b"POST /v1/classify HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"POST /v1/classify HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/classify HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_not_http_is_a_400(address: tuple[str, int], garbage: bytes) -> None:
    assert split(talk(address, garbage)) == (400, "this is not a request of HTTP/1.1")
    assert b" 200 " in talk(address, GET)


def test_a_head_without_end_is_cut_off(address: tuple[str, int]) -> None:
    many = b"".join(b"x-%d: %s\r\n" % (n, b"y" * 1000) for n in range(40))
    status, says = split(talk(address, b"GET /healthz HTTP/1.1\r\n", many, many, pause=0.02))
    assert (status, says) == (431, "the request's line and headers have more than 65536 bytes")


@pytest.mark.parametrize(
    "start",
    [
        b"GET /healthz HT",
        b"\r\n\r\n",
        b"POST /v1/classify HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{",
        b"POST /v1/classify HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
    ],
)
def test_a_request_that_never_ends_is_given_up(address: tuple[str, int], start: bytes) -> None:
    assert split(talk(address, start)) == (408, "the request took longer than 0.5 seconds to arrive")
    with socket.create_connection(address, timeout=3) as connection:
        connection.sendall(start)
        connection.shutdown(socket.SHUT_WR)
        assert split(connection.recv(65536)) == (400, "the request ended before it was whole")


@pytest.mark.parametrize("requests", [1, 3])
def test_a_client_that_leaves_before_its_answer_is_no_fault(requests: int) -> None:
    stream, body = io.StringIO(), b'{"inputs": ["a"]}'
    logs.to_stream(stream)
    with live(FakeService()) as url:
        for _ in range(200):
            with socket.create_connection(place_of(url)) as connection:
                connection.sendall(CLASSIFY % (len(body), body) * requests)
        wait_for(lambda: talk(place_of(url), GET).startswith(b"HTTP/1.1 200"))  # it may yet count those that left
    assert "fault" not in stream.getvalue()


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (GET * 3 + b"GET / HTTP/1.0\r\nhost: localhost\r\n\r\n", 4),
        (GET + b"\x00\x01garbage\r\n\r\n", 1),
        (GET.replace(b"\r\n\r\n", b"\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"), 1),
    ],
    ids=["one after another", "garbage behind", "upgrade"],
)
def test_whole_requests_are_answered_whatever_comes_with_them(
    address: tuple[str, int], sent: bytes, answers: int
) -> None:
    answer = talk(address, sent)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1 200") == answers


STATE = b"GET /v1/state HTTP/1.1\r\nhost: localhost\r\n\r\n"


def busy(address: tuple[str, int]) -> socket.socket:
    """Open a connection amid a request."""
    connection = socket.create_connection(address, timeout=3)
    connection.sendall(b"GET /v1/state HT")
    return connection


@pytest.mark.parametrize("limit", ["connections", "client_connections"])
def test_where_all_connections_are_taken_one_without_a_whole_request_gives_way(limit: str) -> None:
    with live(FakeService(), **{limit: 5}) as url:
        address = place_of(url)
        slow = [busy(address) for _ in range(5)]
        assert talk(address, GET).startswith(b"HTTP/1.1 200")
        assert slow[0].recv(65536) == b""  # it had waited longest
        assert talk(address, STATE).startswith(b"HTTP/1.1 200")
        for connection in slow:
            connection.close()


def test_where_all_connections_have_a_request_a_new_one_is_refused() -> None:
    service = FakeService()
    service.stuck = True
    body = b'{"inputs": ["a"]}'
    with live(service, connections=5, answer_seconds=60) as url, ExitStack() as stack:
        address = place_of(url)
        for _ in range(5):
            connection = stack.enter_context(socket.create_connection(address, timeout=3))
            connection.sendall(CLASSIFY % (len(body), body))
        wait_for(lambda: len(service.futures) == 5)
        assert split(talk(address, GET)) == (503, "too many connections are open")
        stack.close()
        while not talk(address, STATE).startswith(b"HTTP/1.1 200"):  # the server hears of it in a moment
            pass


def test_the_client_with_most_connections_gives_way() -> None:
    with live(FakeService(), connections=5) as url, ExitStack() as stack:
        address = place_of(url)
        other = stack.enter_context(socket.create_connection(address, timeout=3, source_address=("127.0.0.2", 0)))
        other.sendall(GET[:9])
        slow = [stack.enter_context(busy(address)) for _ in range(4)]
        assert talk(address, GET).startswith(b"HTTP/1.1 200")
        other.sendall(GET[9:])
        assert other.recv(65536).startswith(b"HTTP/1.1 200")  # though it had waited longer
        assert slow[0].recv(65536) == b""


def test_kept_alive_connections_lock_nobody_out() -> None:
    with live(FakeService(), connections=5) as url, ExitStack() as stack:
        address = place_of(url)
        resting = [stack.enter_context(socket.create_connection(address, timeout=3)) for _ in range(5)]
        for connection in resting:
            connection.sendall(GET)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert talk(address, STATE).startswith(b"HTTP/1.1 200")
        while rest := resting[0].recv(65536):  # the one that had rested longest was closed for it
            assert b"HTTP" not in rest


def test_a_connection_over_which_nothing_is_asked_is_closed() -> None:
    with live(FakeService(), idle_seconds=1) as url, socket.create_connection(place_of(url)) as connection:
        connection.sendall(GET)
        answer = b""
        while chunk := connection.recv(65536):  # until the server hangs up
            answer += chunk
        assert answer.count(b"HTTP/1.1 200") == 1
