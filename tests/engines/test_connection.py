import asyncio
import threading
from pathlib import Path

import pytest

from engines.fake_engine import FakeVllm
from tanbr.engines.connection import Connection, EngineLost, EngineStatus
from tanbr.errors import ConfigError


@pytest.mark.parametrize("url", ["", "localhost:80", "ftp://here", "http://", "http://[::1"])
def test_what_is_no_address_is_one_sentence(url: str) -> None:
    with pytest.raises(ConfigError, match="an engine's URL must be like"):
        Connection(url)


def test_a_password_is_not_repeated(vllm: FakeVllm) -> None:
    connection = Connection(vllm.url.replace("http://", "http://me:secret@"))
    vllm.kill()
    with pytest.raises(EngineLost) as error:
        connection.call(connection.get("/v1/models"))
    assert "secret" not in str(error.value)
    assert vllm.url in str(error.value)
    connection.close()
    vllm.start()


def test_a_status_is_said_with_the_engines_own_words(vllm: FakeVllm) -> None:
    connection = Connection(vllm.url)
    with pytest.raises(EngineStatus, match="/nothing with 404: Not Found"):
        connection.call(connection.get("/nothing"))
    asked = {"model": "other", "prompt": [1], "max_tokens": 1}
    with pytest.raises(EngineStatus, match="404: The model `other` does not exist"):
        connection.call(connection.post("/v1/completions", asked))

    async def stream() -> None:
        async for _ in connection.events("/v1/completions", asked):
            pass

    with pytest.raises(EngineStatus, match="404: The model `other` does not exist"):
        connection.call(stream())
    connection.close()


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


def test_what_waits_is_given_up_when_it_is_closed(dense: Path) -> None:
    connection = Connection("http://127.0.0.1:9")
    waiting = connection.start(asyncio.sleep(1000))
    connection.close()
    connection.close()
    assert waiting.cancelled()
