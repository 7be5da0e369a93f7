"""A real llama-server on the CPU, in float32: run by `make engines`, which builds it. Left out where it is missing.

What it must answer, token for token, is what transformers and PEFT answer with the same blend.
"""

import itertools
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import psutil
import pytest

from cli.running import tanbr
from engines.asking import relayed, serving, transformers_answers
from engines.front import ADMIN_TOKEN, Front, after_a_hang, after_a_kill, front, ready, spread
from engines.front import texts as said_in
from engines.real_engine import LLAMA_SERVER, SLOTS, RealLlamaCpp
from engines.tiny_adapters import blended_by_peft
from serve.web.live import wait_for
from tanbr.engines import connect
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.serve.engine import Engine

pytestmark = [
    pytest.mark.skipif(
        LLAMA_SERVER is None, reason="TANBR_LLAMA_SERVER names no llama-server; `make engines` builds it"
    ),
    pytest.mark.timeout(1500),
]
PROMPTS = ["the win in the w", "tin", "w w w the in the in the in the in the"]
LIMIT = 12
ALONE = [tuple(row) for row in np.eye(4).tolist()]
BLENDS = [*ALONE, (0, 0, 0.5, 0.5), (0.25,) * 4, (0.4, 0.3, 0.2, 0.1)]
BLENDS += [tuple(row) for row in np.random.default_rng(0).dirichlet(np.ones(4), size=3).tolist()]
Blend = tuple[float, ...]


class Case:
    """A base, four adapters, and an engine that runs them."""

    def __init__(self, folder: Path, **sizes: int) -> None:
        from engines.tiny_gguf import write_gguf  # it needs the package gguf, which only `make engines` installs

        self.moe: Moe = open_moe(**write_gguf(folder, **sizes))
        adapters = [Path(name).with_suffix(".gguf") for name in self.moe.source.names]
        self.engine = RealLlamaCpp(self.moe.path.with_suffix(".gguf"), adapters, folder / "llama.log")
        self.experts = [*(word for name in self.moe.source.names for word in ("--expert", name)), "--no-base"]
        self.expected = cache(self._expected)

    def _expected(self, blend: Blend) -> list[tuple[int, ...]]:
        return transformers_answers(self.moe, blend, PROMPTS, limit=LIMIT, model=blended_by_peft(self.moe, blend))

    @contextmanager
    def panel(self, models: int) -> Iterator[Engine]:
        """An engine of ours in front, for a panel of so many models."""
        backend = connect(self.moe, engine="llamacpp", urls=[self.engine.url], models=models)
        try:
            yield serving(backend, self.moe, models=models)
        finally:
            backend.close()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    made = Case(tmp_path_factory.mktemp("llama"))
    with made.engine.running():
        yield made


@pytest.fixture(scope="module")
def server(case: Case) -> Iterator[Front]:
    with front(case.engine.log.parent, case.moe.path, "llamacpp", case.engine.url, *case.experts) as made:
        yield made
    assert ADMIN_TOKEN not in case.engine.log.read_text()  # the clients' token stays with tanbr


def switch(engine: Engine, blends: Sequence[Blend]) -> None:
    """Let a panel of these blends answer."""
    engine.commit(*(engine.prepare(blend) for blend in blends))


def tokens(engine: Engine, place: int) -> tuple[Blend, list[tuple[int, ...]]]:
    """The blend of a panel's model, and what it writes: every token is named where probabilities are asked for."""
    heard: list[dict[str, Any]] = []
    body = {"prompt": PROMPTS, "max_tokens": LIMIT, "temperature": 0, "logprobs": 1}
    with engine.using(engine.panel, place) as live:
        live.backend.relay("/v1/completions", body, heard.append).result(120)
        assert live.blend is not None
        blend = tuple(live.blend.tolist())
    choices = sorted(heard[0]["choices"], key=lambda choice: int(choice["index"]))
    rows = [[one["id"] for one in choice["logprobs"]["content"]] for choice in choices]
    return blend, [tuple(token for token in row if token != 1) for row in rows]


def test_ten_blends_and_a_panel_of_three_answer_token_for_token_as_peft_does(case: Case) -> None:
    assert len(BLENDS) == 10
    with case.panel(1) as engine:
        for blend in BLENDS:
            engine.swap(blend)
            assert tokens(engine, 0) == (blend, case.expected(blend))
    with case.panel(3) as engine:
        switch(engine, BLENDS[4:7])
        for place in (0, 1, 2):
            assert tokens(engine, place) == (BLENDS[4 + place], case.expected(BLENDS[4 + place]))


def test_two_hundred_requests_while_twenty_sets_are_switched_are_all_answered_by_the_blend_they_name(
    case: Case,
) -> None:
    sets = [[BLENDS[(3 * number + g) % len(BLENDS)] for g in range(3)] for number in range(20)]
    for blend in BLENDS:
        case.expected(blend)
    with case.panel(3) as engine, ThreadPoolExecutor(SLOTS) as clients:
        switch(engine, sets[-1])
        answered = [clients.submit(tokens, engine, number % 3) for number in range(200)]
        for blends in sets:
            switch(engine, blends)
        heard = [one.result() for one in answered]
    assert sum(said == case.expected(blend) for blend, said in heard) == len(heard) == 200
    assert len({blend for blend, _ in heard}) > 3  # some were switched under way


def test_a_stream_says_what_a_whole_answer_says(server: Front) -> None:
    how: dict[str, Any] = {"model": "tanbr", "prompt": PROMPTS[0], "max_tokens": LIMIT, "temperature": 0}
    with server.client() as client:
        whole: Any = client.completions.create(**how)
        pieces: Any = list(client.completions.create(stream=True, **how))
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    assert len(pieces) > LIMIT // 2
    assert {piece.merge_version for piece in pieces} == {whole.merge_version}


def test_what_only_llama_cpp_knows_of_goes_to_it_and_back(server: Front) -> None:
    how: dict[str, Any] = {"model": "tanbr", "prompt": PROMPTS[0], "max_tokens": LIMIT, "temperature": 1.0}
    with server.client() as client:
        only_w: Any = client.completions.create(extra_body={"grammar": 'root ::= "w"+'}, **how)
        assert set(said_in(only_w)[0]) == {"w"}
        assert only_w.model_extra["timings"]["predicted_n"] == only_w.usage.completion_tokens
        options: Any = {"include_usage": True}
        *_, last = client.completions.create(stream=True, stream_options=options, **how)
        assert last.usage.prompt_tokens == only_w.usage.prompt_tokens
        said: Any = client.completions.create(seed=3, logprobs=2, stop=["\n"], **how)
        assert said_in(said) == said_in(client.completions.create(seed=3, stop=["\n"], **how))
        with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
            client.completions.create(**how | {"prompt": "w" * 5000})


def test_an_engine_that_is_killed_or_comes_back_with_other_files_answers_nobody_until_it_has_the_right_ones(
    server: Front, case: Case, tmp_path: Path
) -> None:
    engine, files = case.engine, case.engine.adapters
    other = tmp_path / "other.gguf"
    other.write_bytes(engine.folder.read_bytes())

    def refused() -> bool:
        return server.ask("/v1/completions", {"model": "tanbr", "prompt": "w"}).status_code == 503

    def others() -> None:
        base = engine.folder
        for engine.folder, engine.adapters in ((base, files[:3]), (base, files[::-1]), (other, files)):
            logged = len(server.log.read_text())
            engine.start()
            wait_for(lambda: "is lost: the engine has " in server.log.read_text()[logged:])  # noqa: B023
            assert refused()
            engine.kill()
        engine.folder, engine.adapters = base, files

    engine.kill()  # and another one is there before anybody has looked
    engine.adapters = files[::-1]
    engine.start()
    assert refused()
    engine.kill()
    engine.adapters = files
    engine.start()
    ready(server)
    blend = (0.0, 0.0, 0.5, 0.5)
    said = after_a_kill(server, engine, None, blend, PROMPTS, limit=LIMIT, meanwhile=others)
    assert said == [text.strip() for text in texts(case.moe.path, case.expected(blend))]


def test_an_engine_that_hangs_is_a_503_and_then_goes_on(server: Front, case: Case) -> None:
    after_a_hang(server, case.engine)


def test_too_few_adapters_are_one_sentence_and_exit_code_2(case: Case, tmp_path: Path) -> None:
    few = RealLlamaCpp(case.engine.folder, case.engine.adapters[:3], tmp_path / "log")
    with few.running():
        asked = ("--engine", "llamacpp", "--engine-url", few.url, "--port", "0", "--force")
        done = tanbr("serve", str(case.moe.path), *case.experts, *asked, cwd=tmp_path)
    assert done.returncode == 2
    assert "has 3 adapters, and 4 experts are blended" in done.stderr.splitlines()[-1]


def texts(checkpoint: Path, rows: Sequence[Sequence[int]]) -> list[str]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    return [tokenizer.decode(list(row), skip_special_tokens=True) for row in rows]


# --- figures ----------------------------------------------------------------------------------------------------------

SIZES = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8}
SIZES |= {"head_dim": 64, "num_key_value_heads": 2}
ROUNDS, REQUESTS, CLIENTS, WRITTEN = 5, 24, 8, 24
HTTP = httpx2.Client(timeout=300)


def write(url: str, body: dict[str, Any]) -> int:
    done = HTTP.post(f"{url}/v1/completions", json=body).raise_for_status().json()
    return int(done["usage"]["completion_tokens"])


def rate(bodies: Sequence[tuple[str, dict[str, Any]]], engine: psutil.Process) -> tuple[float, float]:
    """Tokens per second, and per second of the engine's own work, which others on the machine hardly change."""
    started, worked = time.perf_counter(), sum(engine.cpu_times()[:2])
    with ThreadPoolExecutor(CLIENTS) as clients:
        count = sum(clients.map(lambda one: write(*one), bodies))
    return count / (time.perf_counter() - started), count / (sum(engine.cpu_times()[:2]) - worked)


@pytest.mark.skipif("TANBR_LLAMA_RESULTS" not in os.environ, reason="figures are written by `make engines`")
def test_figures(tmp_path: Path) -> None:
    made = Case(tmp_path, **SIZES)
    url = made.engine.url
    asked = {"max_tokens": WRITTEN, "temperature": 0, "ignore_eos": True, "cache_prompt": False}

    def direct(blend: Blend, number: int) -> tuple[str, dict[str, Any]]:
        scales = [{"id": k, "scale": x * (2.0 if k == 1 else 1.0)} for k, x in enumerate(blend)]  # the second is rslora
        return url, asked | {"prompt": f"the win {number}", "lora": scales}

    found: dict[str, Any] = {}
    with made.engine.running(), front(tmp_path, made.moe.path, "llamacpp", url, *made.experts) as server:
        process = psutil.Process(made.engine.process.pid)
        names = [one["id"] for one in server.ask("/v1/models").json()["data"]][-4:]  # each adapter, by its name
        for models in (1, 2, 3):
            places = [number % models for number in range(REQUESTS)]
            through = [
                (server.url, asked | {"model": names[g], "prompt": f"the win {i}"}) for i, g in enumerate(places)
            ]
            straight = [direct(ALONE[g], i) for i, g in enumerate(places)]
            rate(through, process), rate(straight, process)
            pairs = [(rate(through, process), rate(straight, process)) for _ in range(ROUNDS)]
            for kind, name in enumerate(("tokens per second", "tokens per second of the engine's own work")):
                found.setdefault(name, {})[f"G = {models}"] = {
                    "through tanbr": spread([one[kind] for one, _ in pairs]),
                    "asked directly": spread([one[kind] for _, one in pairs]),
                    "ratio": spread([one[kind] / other[kind] for one, other in pairs]),
                }
        times: list[float] = []
        with made.panel(1) as engine:
            for blend in itertools.islice(itertools.cycle(BLENDS), 20):
                started = time.perf_counter()
                engine.swap(blend)
                relayed(engine, prompt="the win", max_tokens=1, temperature=0)
                times.append(time.perf_counter() - started)
        wrong = cached(url, direct)
    said = {
        "command": "make engines",
        "engine": "llama.cpp of llama-cpp-python 0.3.36, float32, one thread, 4 slots",
        "model": f"random Mistral, {made.moe.path.with_suffix('.gguf').stat().st_size} bytes, four LoRA adapters",
        "requests": f"{REQUESTS} of {WRITTEN} tokens each by {CLIENTS} clients, {ROUNDS} rounds of both in turn",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}",
        **found,
        "seconds from a new blend to its first answer": spread(times),
        "wrong answers of 96 asked directly with its prompt cache on": wrong,
    }
    path = Path(os.environ["TANBR_LLAMA_RESULTS"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def cached(url: str, direct: Callable[[Blend, int], tuple[str, dict[str, Any]]]) -> int:
    """Ask prompts again under other scales: how often the server's own prompt cache answers for the wrong ones."""

    def text(blend: Blend, number: int, **how: Any) -> str:
        body = direct(blend, number)[1] | {"prompt": f"prompt number {number} " * 8, "max_tokens": LIMIT} | how
        return str(HTTP.post(f"{url}/v1/completions", json=body).json()["choices"][0]["text"])

    right = {(blend, number): text(blend, number) for blend in ALONE for number in range(8)}
    rounds = itertools.product(range(3), ALONE, range(8))
    return sum(text(blend, number, cache_prompt=True) != right[blend, number] for _, blend, number in rounds)
