"""A real server on a free port of loopback, in a thread, around any service."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2

from tanbr.serve.web.auth import Tokens
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.metrics import Metrics
from tanbr.serve.web.server import Server, address_of, bind

TOKEN, ADMIN_TOKEN = "a-token-for-everybody", "a-token-for-operators"
BOTH = Tokens.read({"TANBR_TOKEN": TOKEN, "TANBR_ADMIN_TOKEN": ADMIN_TOKEN})
ADMIN = Tokens.read({"TANBR_ADMIN_TOKEN": ADMIN_TOKEN})


@contextmanager
def live(service: Any, *, tokens: Tokens = ADMIN, root_path: str = "", **settings: Any) -> Iterator[str]:
    """Serve until the block ends; the URL."""
    config = HttpConfig(**{"port": 0} | settings)
    taken = bind(config)
    running = Server(service, config=config, tokens=tokens, metrics=Metrics(), loopback=True)
    running.config.root_path = root_path  # as a proxy that strips a prefix has it
    thread = threading.Thread(target=running.run, kwargs={"sockets": [taken]})
    thread.start()
    while not running.started and thread.is_alive():
        time.sleep(0.005)
    try:
        yield address_of(taken)[0]
    finally:
        running.should_exit = True
        thread.join()


@contextmanager
def client(url: str, token: str | None = None) -> Iterator[httpx2.Client]:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    with httpx2.Client(base_url=url, headers=headers, timeout=20) as made:
        yield made


def place_of(url: str) -> tuple[str, int]:
    """Give the address to open a socket to."""
    parts = urlsplit(url)
    return str(parts.hostname), int(str(parts.port))


def refusal(response: httpx2.Response) -> str:
    """Check that an answer is a refusal with one sentence, and give it."""
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.headers["content-type"] == "application/json"
    sentence = error["message"]
    assert sentence
    assert "\n" not in sentence
    assert "Traceback" not in sentence
    return sentence


def wait_for(condition: Callable[[], Any]) -> None:
    """Wait for what must come; if it does not, the test's own time-out ends it."""
    while not condition():
        time.sleep(0.005)
