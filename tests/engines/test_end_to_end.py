"""The whole with an engine: a server process, OpenAI's client, swaps, an engine that dies, a server that is killed."""

import signal
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from engines.fake_engine import FakeVllm
from engines.front import Front, after_a_kill, front, swaps, texts_of
from tanbr.merge import Moe

PROMPTS = ["w1 w2 w3", "w5 w5 w5 w5 w5 w5", "w1 w2 w3 w4"]
LIMIT = 6


@dataclass
class Case:
    """Experts, the engine that runs them, and the server's command line beside a folder for its state."""

    moe: Moe
    engine: FakeVllm
    folder: Path

    def front(self) -> AbstractContextManager[Front]:
        experts = self.moe.source.names if self.engine.takes_adapters else []
        arguments = [word for folder in experts for word in ("--expert", folder)]
        return front(self.folder, self.moe.path, "vllm", self.engine.url, *arguments)

    def expected(self, blend: list[float]) -> list[str]:
        return texts_of(self.moe, blend, PROMPTS, limit=LIMIT)


@pytest.fixture(params=[("mixtral", "vllm"), ("adapters", "lora")], ids=["whole models", "adapters"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    moe, engine = map(request.getfixturevalue, request.param)
    return Case(moe, engine, tmp_path)


def asked(server: Front) -> Any:
    with server.client() as client:
        return client.completions.create(model=client.models.list().data[0].id, prompt=PROMPTS, max_tokens=LIMIT)


def texts(answer: Any) -> list[str]:
    return [choice.text for choice in answer.choices]


def test_swaps_a_rollback_and_a_kill_through_the_command_line(case: Case) -> None:
    with case.front() as server:
        done = swaps(server, case.moe, PROMPTS, count=5, limit=LIMIT)
        assert done["answers equal to transformers'"] == done["answers"] == 5 * (2 * len(PROMPTS) + 1)
        assert case.engine.loads == 6  # the start blend, and five
        before, now = server.ask("/v1/state").json()["merge_version"], server.ask("/v1/admin/rollback").json()
        assert now["merge_version"] < before
        answer = asked(server)
        assert texts(answer) == case.expected(server.ask("/v1/state").json()["blend"])
        given = [{"request_id": choice.request_id, "reward": 1.0} for choice in answer.choices]
        assert server.ask("/v1/feedback", {"feedback": given}).json()["accepted"] == 3
        pinned = server.ask("/v1/admin/pin", {"blend": [0, 1, 0, 0]}).json()
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    loads = case.engine.loads
    with case.front() as server:
        assert case.engine.loads == loads + case.engine.takes_adapters  # an adapter's folder went with the server
        answer = asked(server)
        assert answer.merge_version == pinned["merge_version"]
        assert texts(answer) == case.expected([0, 1, 0, 0])
    assert case.engine.adapters == {}


def test_an_engine_that_dies_is_a_503_with_retry_after_and_comes_back_with_the_old_version(
    vllm: FakeVllm, mixtral: Moe, tmp_path: Path
) -> None:
    case = Case(mixtral, vllm, tmp_path)
    with case.front() as server:

        def meanwhile() -> None:
            assert httpx2.get(f"{server.url}/readyz").status_code == 503
            assert httpx2.get(f"{server.url}/healthz").status_code == 200  # a restart of the server would mend nothing
            assert server.ask("/v1/admin/pin", {"blend": [1.0, 0, 0, 0]}).status_code == 503

        blend = [0.0, 1.0, 0.0, 0.0]
        assert after_a_kill(server, vllm, blend, PROMPTS, limit=LIMIT, meanwhile=meanwhile) == case.expected(blend)
