"""The whole with an engine: a server process, OpenAI's client, swaps, an engine that dies, a server that is killed."""

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from engines.fake_engine import FakeVllm
from engines.front import Front, after_a_kill, front, swaps, texts_of
from serve.web.live import wait_for
from tanbr.merge import Moe
from tanbr.moe.text import TextEncoder

PROMPTS = ["w1 w2 w3", "w5 w5 w5 w5 w5 w5", "w1 w2 w3 w4"]


@pytest.fixture
def server(vllm: FakeVllm, mixtral: Moe, tmp_path: Path) -> Iterator[Front]:
    with front(tmp_path, mixtral.path, "vllm", vllm.url) as made:
        yield made


@pytest.fixture(scope="session")
def encode(mixtral: Moe) -> TextEncoder:
    return TextEncoder.of(mixtral.path, vocab_size=mixtral.config["vocab_size"])


def test_ten_swaps_through_the_command_line(server: Front, vllm: FakeVllm, mixtral: Moe, encode: TextEncoder) -> None:
    done = swaps(server, mixtral, PROMPTS, encode, count=10, limit=6)
    assert done["answers equal to transformers'"] == done["answers"] == 10 * (2 * len(PROMPTS) + 1)
    assert vllm.loads == 11  # the start blend, and ten
    before, now = server.ask("/v1/state").json()["merge_version"], server.ask("/v1/admin/rollback").json()
    assert now["merge_version"] < before
    expected = texts_of(mixtral, server.ask("/v1/state").json()["blend"], PROMPTS, limit=6, encode=encode)
    with server.client() as client:
        model = client.models.list().data[0].id
        answer = client.completions.create(model=model, prompt=PROMPTS, max_tokens=6)
        assert [choice.text for choice in answer.choices] == expected
        ids = [choice.request_id for choice in answer.choices]  # type: ignore[attr-defined]
    given = server.ask("/v1/feedback", {"feedback": [{"request_id": one, "reward": 1.0} for one in ids]}).json()
    assert given["accepted"] == 3


def test_an_engine_that_dies_is_a_503_with_retry_after_and_comes_back_with_the_old_version(
    server: Front, vllm: FakeVllm, mixtral: Moe, encode: TextEncoder
) -> None:
    def meanwhile() -> None:
        assert httpx2.get(f"{server.url}/readyz").status_code == 503
        assert httpx2.get(f"{server.url}/healthz").status_code == 200  # a restart of the server would mend nothing
        assert server.ask("/v1/admin/pin", {"blend": [1.0, 0, 0, 0]}).status_code == 503

    blend = [0.0, 1.0, 0.0, 0.0]
    texts = after_a_kill(server, vllm, blend, PROMPTS, limit=6, meanwhile=meanwhile)
    assert texts == texts_of(mixtral, blend, PROMPTS, limit=6, encode=encode)


def test_a_server_that_is_killed_goes_on_with_the_version_that_the_engine_has(
    vllm: FakeVllm, mixtral: Moe, encode: TextEncoder, tmp_path: Path
) -> None:
    with front(tmp_path, mixtral.path, "vllm", vllm.url) as server:
        pinned = server.ask("/v1/admin/pin", {"blend": [0, 1, 0, 0]}).json()
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    loads = vllm.loads
    with front(tmp_path, mixtral.path, "vllm", vllm.url) as server, server.client() as client:
        assert vllm.loads == loads
        answer = client.completions.create(model=client.models.list().data[0].id, prompt=PROMPTS, max_tokens=6)
        assert answer.merge_version == pinned["merge_version"]  # type: ignore[attr-defined]
        expected = texts_of(mixtral, [0, 1, 0, 0], PROMPTS, limit=6, encode=encode)
        assert [choice.text for choice in answer.choices] == expected


def test_a_client_that_leaves_ends_the_engines_work(server: Front, vllm: FakeVllm) -> None:
    vllm.slow.set()
    with server.client() as client:
        model = client.models.list().data[0].id
        stream = client.completions.create(model=model, prompt=PROMPTS[0], max_tokens=6, stream=True)
        assert next(iter(stream)).choices[0].text
        stream.close()
        wait_for(lambda: vllm.abandoned)


def test_adapters_through_the_command_line_before_an_engine_that_takes_them(
    lora: FakeVllm, adapters: Moe, tmp_path: Path
) -> None:
    encode = TextEncoder.of(adapters.path, vocab_size=adapters.config["vocab_size"])
    arguments = [word for folder in adapters.source.names for word in ("--expert", folder)]
    with front(tmp_path, adapters.path, "vllm", lora.url, *arguments) as server:
        done = swaps(server, adapters, PROMPTS, encode, count=5, limit=6)
        assert done["answers equal to transformers'"] == done["answers"] == 5 * (2 * len(PROMPTS) + 1)
        assert lora.loads == 6  # the start blend, and five
        pinned = server.ask("/v1/admin/pin", {"blend": [0, 1, 0, 0]}).json()
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    with front(tmp_path, adapters.path, "vllm", lora.url, *arguments) as server, server.client() as client:
        answer = client.completions.create(model=client.models.list().data[0].id, prompt=PROMPTS, max_tokens=6)
        assert answer.merge_version == pinned["merge_version"]  # type: ignore[attr-defined]
        expected = texts_of(adapters, [0, 1, 0, 0], PROMPTS, limit=6, encode=encode)
        assert [choice.text for choice in answer.choices] == expected
    assert lora.adapters == {}
