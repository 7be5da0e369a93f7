"""The whole with an engine: a server process, OpenAI's client, swaps, an engine that dies, a server that is killed."""

import json
import re
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from engines.asking import BLENDS
from engines.fake_engine import FakeVllm
from engines.front import Front, after_a_kill, front, swaps, texts, texts_of
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.serve.web.relay import expert_ids
from tanbr.vllm_plugin import folder_of

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
        arguments = [word for folder in experts for word in ("--expert", folder)] + ["--no-base"] * bool(experts)
        return front(self.folder, self.moe.path, "vllm", self.engine.url, *arguments)

    def expected(self, blend: list[float]) -> list[str]:
        return texts_of(self.moe, blend, PROMPTS, limit=LIMIT)


@pytest.fixture(params=[("mixtral", "vllm"), ("adapters", "lora")], ids=["whole models", "adapters"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    moe, engine = map(request.getfixturevalue, request.param)
    return Case(moe, engine, tmp_path)


def asked(server: Front) -> Any:
    with server.client() as client:
        return client.completions.create(model="tanbr", prompt=PROMPTS, max_tokens=LIMIT, temperature=0)


def test_swaps_a_rollback_and_a_kill_through_the_command_line(case: Case) -> None:
    with case.front() as server:
        asked_for = 5 * (2 * len(PROMPTS) + 1)
        assert swaps(server, case.moe, PROMPTS, count=5, limit=LIMIT) == (asked_for, asked_for)
        assert case.engine.loads == 6 - case.engine.takes_adapters  # the start blend and five, one of which was held
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
        assert case.engine.loads == loads + 1  # what was written went with the server
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
        assert after_a_kill(server, vllm, mixtral, blend, PROMPTS, limit=LIMIT, meanwhile=meanwhile) == case.expected(
            blend
        )


# --- panels and pass-through ------------------------------------------------------------------------------------------

TOKEN = "the-token-of-the-clients"


@pytest.fixture
def panel(lora: FakeVllm, adapters: Moe, tmp_path: Path) -> Iterator[Front]:
    """A server that sends each request to one of two models, by what it says."""
    tasks = {"low": range(15), "high": range(30, 45)}
    lines = [
        {"text": " ".join(f"w{words[(7 * n + m) % 15]}" for m in range(6)), "task": name}
        for name, words in tasks.items()
        for n in range(30)
    ]
    (tmp_path / "past.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    names = [f'[[experts]]\npath = "{path}"\n' for path in adapters.source.names[:2]]
    listed = [one + f'task = "{task}"\n' for one, task in zip(names, tasks, strict=True)]
    (tmp_path / "experts.toml").write_text(f'base = "{adapters.path}"\n' + "".join(listed))
    arguments = ("--unmerged", "--history", str(tmp_path / "past.jsonl"))
    with front(tmp_path, tmp_path / "experts.toml", "vllm", lora.url, *arguments, TANBR_TOKEN=TOKEN) as server:
        yield server


def test_each_request_goes_to_the_adapter_of_its_task_and_names_can_be_asked_for(
    panel: Front, lora: FakeVllm, adapters: Moe
) -> None:
    two = open_moe(adapters.path, experts=adapters.source.names[:2])
    prompts = ["w1 w5 w3 w2", "w31 w40 w33 w38"]
    alone = [texts_of(two, blend, prompts, limit=LIMIT) for blend in ([1.0, 0.0], [0.0, 1.0])]
    how = {"max_tokens": LIMIT, "temperature": 0}
    names = [one["id"] for one in panel.ask("/v1/models").json()["data"]]
    assert names == ["tanbr", "tanbr-v1", "tanbr-v2", "low", "high"]
    both = panel.ask("/v1/completions", {"model": "tanbr", "prompt": prompts, **how}).json()
    assert [choice["text"].strip() for choice in both["choices"]] == [alone[0][0], alone[1][1]]
    assert [choice["index"] for choice in both["choices"]] == [0, 1]
    versions = [choice["merge_version"] for choice in both["choices"]]
    assert sorted(versions) == [1, 2]
    assert both["usage"] == {"prompt_tokens": 8, "completion_tokens": 2 * LIMIT}
    for name, expected in zip(("low", "high", *(f"tanbr-v{one}" for one in versions)), (*alone, *alone), strict=True):
        said = panel.ask("/v1/completions", {"model": name, "prompt": prompts, **how}).json()
        assert [choice["text"].strip() for choice in said["choices"]] == expected
        assert said["model"] == name
    assert panel.ask("/v1/state").json()["requests"] == 2  # what clients have named is no model's doing
    given = [{"request_id": choice["request_id"], "reward": 1.0} for choice in said["choices"]]
    assert panel.ask("/v1/feedback", {"feedback": given}).json()["accepted"] == 2
    for name in ("tanbr-v77", "nobody"):
        refused = panel.ask("/v1/completions", {"model": name, "prompt": "w1", **how})
        assert (refused.status_code, refused.json()["error"]["param"]) == (404, "model")


def test_an_expert_whose_name_is_taken_has_its_number_too() -> None:
    names = ("low", "tanbr", "low", "tanbr-v2", "a b", "a-b")
    info: Any = SimpleNamespace(expert_names=names, experts_by_name=True)
    assert list(expert_ids(info)) == ["low", "tanbr-2", "low-3", "tanbr-v2-4", "a-b", "a-b-6"]


def test_what_is_not_ours_goes_to_the_engine_and_back_as_it_is(panel: Front, lora: FakeVllm) -> None:
    lora.asked.clear()
    said = {"messages": [{"role": "user", "content": "w1 w5 w3"}], "max_tokens": 3, "n": 2, "logprobs": True}
    said |= {"tools": [{"type": "function", "function": {"name": "f"}}], "response_format": {"type": "json_object"}}
    said |= {"user": "me", "presence_penalty": 0.5, "seed": 4, "stop": ["w9"], "beyond_openai": {"deep": [1, None]}}
    answer = panel.ask("/v1/chat/completions", {"model": "tanbr", "task": "high", **said}).json()
    (asked,) = lora.asked
    assert {name: value for name, value in asked.items() if name != "model"} == said
    assert [len(choice["logprobs"]["content"]) for choice in answer["choices"]] == [3, 3]
    assert len({choice["request_id"] for choice in answer["choices"]}) == 2
    assert answer["id"] == f"chatcmpl-{answer['choices'][0]['request_id']}"
    with panel.client() as client:
        options: Any = {"include_usage": True}
        pieces: Any = client.completions.create(
            model="tanbr", prompt=["w1 w2", "w31 w40"], max_tokens=3, stream=True, stream_options=options
        )
        events = list(pieces)
    assert {choice.index for event in events for choice in event.choices} == {0, 1}
    assert events[-1].usage.prompt_tokens == 4  # of both models
    refused = panel.ask("/v1/completions", {"model": "tanbr", "prompt": "w1", "max_tokens": 10**6})
    assert refused.status_code == 400
    assert refused.json()["error"] == {
        "message": "max_tokens cannot be greater than max_model_len",
        "type": "invalid_request_error",
        "param": "max_tokens",
        "code": 400,
    }
    assert lora.keys == {None}  # the clients' token stays here


def test_an_engine_may_ask_where_an_adapter_lies(panel: Front, lora: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANBR_TOKEN", TOKEN)
    places = {name: folder for name, (folder, _) in lora.adapters.items()}
    assert {name: folder_of(panel.url, name) for name in places} == places
    assert folder_of(panel.url, "tanbr-v1") in places.values()
    assert folder_of(panel.url, "tanbr-v77") is folder_of("http://127.0.0.1:9", "tanbr-v1") is None
    monkeypatch.setenv("TANBR_TOKEN", "another-token-of-somebody")
    assert folder_of(panel.url, "tanbr-v1") is None


def test_a_conversation_keeps_its_version_over_two_swaps_unless_that_was_bad(
    lora: FakeVllm, adapters: Moe, tmp_path: Path
) -> None:
    def turn(*said: str, **headers: str) -> int:
        roles = ["assistant" if place % 2 else "user" for place in range(len(said))]
        messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
        body = {"model": "tanbr", "messages": messages, "max_tokens": 2}
        answer = httpx2.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=120)
        return int(answer.json()["merge_version"])

    with Case(adapters, lora, tmp_path).front() as server:
        versions = [server.ask("/v1/admin/pin", {"blend": BLENDS[0]}).json()["merge_version"]]
        assert turn("w1 w2") == turn("w1 w2", "w3", "w4") == versions[0]
        versions.append(server.ask("/v1/admin/pin", {"blend": BLENDS[1]}).json()["merge_version"])
        assert turn("w1 w2", "w3", "w4") == versions[0]  # goes on
        assert turn("w1 w2") == turn("w5", "w6", "w7") == versions[1]  # begins, or was never heard of
        assert turn("w1 w2", "w3", "w4") == versions[1]  # has begun again
        assert turn("w8", "w8", "w8", **{"x-session-id": "mine"}) == versions[1]
        versions.append(server.ask("/v1/admin/pin", {"blend": BLENDS[2]}).json()["merge_version"])
        assert turn("w9", "w9", "w9", **{"x-session-id": "mine"}) == versions[1]
        bad = server.ask("/v1/admin/pin", {"blend": BLENDS[3]}).json()["merge_version"]
        assert turn("w1", **{"x-session-id": "other"}) == bad
        versions.append(server.ask("/v1/admin/rollback").json()["merge_version"])
        assert turn("w1", "w2", "w3", **{"x-session-id": "other"}) == versions[3]  # nothing stays with what was bad
        for blend in ([0.5, 0.5, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0]):
            versions.append(server.ask("/v1/admin/pin", {"blend": blend}).json()["merge_version"])
        assert turn("w9", "w9", "w9", **{"x-session-id": "mine"}) == versions[-1]  # its own is gone
        metrics = server.ask("/metrics").text
    kept = dict(re.findall(r'^tanbr_conversation_requests_total\{outcome="(\w+)"\} (\d+)', metrics, re.M))
    assert kept == {"begun": "5", "kept": "4", "moved": "2"}
