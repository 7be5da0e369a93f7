"""A real vLLM that takes adapters: run by `make engines`; left out where vLLM is missing."""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from cli.running import tanbr
from engines.front import Front, after_a_kill, front, swaps, texts_of
from engines.real_engine import PYTHON, RealVllm
from engines.test_real_vllm import ANSWERS, EQUAL, LIMIT, PROMPTS, write_figures
from engines.tiny_adapters import blended_by_peft, write_adapters
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.merge.sources.one_adapter import export_adapter
from tanbr.merge.sources.peft_folder import WEIGHTS
from tanbr.moe.text import TextEncoder

pytestmark = [
    pytest.mark.skipif(PYTHON is None, reason="TANBR_VLLM_PYTHON names no Python with vLLM; `make engines` makes one"),
    pytest.mark.timeout(1500),
]
SIZES = {"head_dim": 32, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
RUNTIME = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
ENABLE = "--enable-lora"
SWAPS = 10


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Moe:
    return open_moe(**write_adapters(tmp_path_factory.mktemp("real"), max_position_embeddings=512, **SIZES))


@pytest.fixture(scope="module")
def engine(moe: Moe) -> Iterator[RealVllm]:
    options = (ENABLE, "--max-lora-rank", "16")
    with RealVllm(moe.path, moe.path.parent / "vllm.log", *options, **{RUNTIME: "True"}).running() as running:
        yield running


@pytest.fixture(scope="module")
def server(engine: RealVllm, moe: Moe) -> Iterator[Front]:
    with front(moe.path.parent, moe.path, "vllm", engine.url, *experts(moe)) as made:
        yield made


@pytest.fixture(scope="module")
def encode(moe: Moe) -> TextEncoder:
    return TextEncoder.of(moe.path, vocab_size=moe.config["vocab_size"])


def experts(moe: Moe) -> list[str]:
    return [word for folder in moe.source.names for word in ("--expert", folder)]


def held(engine: RealVllm) -> list[str]:
    cards = httpx2.get(f"{engine.url}/v1/models").json()["data"]
    return [card["id"] for card in cards if card["parent"] is not None]


def expected(moe: Moe, blend: list[float], encode: TextEncoder) -> list[str]:
    return texts_of(moe, blend, PROMPTS, limit=LIMIT, encode=encode, model=blended_by_peft(moe, blend))


def test_ten_swaps_answer_token_for_token_as_peft_does_with_prefixes_cached(
    server: Front, engine: RealVllm, moe: Moe, encode: TextEncoder
) -> None:
    before = engine.prefix_hits()
    done = swaps(
        server, moe, PROMPTS, encode, count=SWAPS, limit=LIMIT, blended=lambda blend: blended_by_peft(moe, list(blend))
    )
    hits = engine.prefix_hits() - before
    assert done[EQUAL] == done[ANSWERS] == SWAPS * (2 * len(PROMPTS) + 1)
    assert hits >= SWAPS * len(PROMPTS[:2]) * 256  # what is asked again came from the cache
    assert len(held(engine)) == 1
    if "TANBR_VLLM_RESULTS" in os.environ:
        path = Path(os.environ["TANBR_VLLM_RESULTS"]).with_name("adapters.json")
        about = "tiny Mistral, 4 LoRA adapters of ranks 2, 4, 1 and 3"
        size = (export_adapter(moe, moe.path.parent / "one", blend=[0.25] * 4) / WEIGHTS).stat().st_size
        write_figures(path, done | {"tokens from the prefix cache": hits}, moe, about=about, size=size)


def test_a_rollback_answers_as_the_version_before(server: Front, moe: Moe, encode: TextEncoder) -> None:
    for blend in ([0.0, 1.0, 0.0, 0.0], [0.25] * 4):
        server.ask("/v1/admin/pin", {"blend": blend})
    server.ask("/v1/admin/rollback")
    blend = server.ask("/v1/state").json()["blend"]
    assert blend == [0.0, 1.0, 0.0, 0.0]
    with server.client() as client:
        answer = client.completions.create(model=client.models.list().data[0].id, prompt=PROMPTS, max_tokens=LIMIT)
    assert [choice.text for choice in answer.choices] == expected(moe, blend, encode)


def test_an_engine_that_is_killed_is_a_503_and_comes_back_with_the_version_that_answered(
    server: Front, engine: RealVllm, moe: Moe, encode: TextEncoder
) -> None:
    blend = [0.0, 0.0, 0.5, 0.5]  # adapters do without development routes
    texts = after_a_kill(server, engine, blend, PROMPTS, limit=LIMIT, VLLM_SERVER_DEV_MODE="0")
    assert texts == expected(moe, blend, encode)


@pytest.mark.parametrize(
    ("options", "runtime", "develops", "says"),
    [
        ((ENABLE, "--max-lora-rank", "8"), "True", "0", ("LoRA rank 9 is greater than max_lora_rank 8", ENABLE)),
        ((), "True", "0", ("LoRA", ENABLE)),
        ((ENABLE, "--max-lora-rank", "16"), "False", "0", ("or, since all experts are adapters", ENABLE)),
        ((ENABLE, "--lora-target-modules", "q_proj"), "True", "1", ("some layers alone (q_proj)",)),
    ],
)
def test_an_engine_that_was_started_otherwise_is_one_sentence(
    options: tuple[str, ...],
    runtime: str,
    develops: str,
    says: tuple[str, ...],
    engine: RealVllm,
    moe: Moe,
    tmp_path: Path,
) -> None:
    engine.kill()
    started = {RUNTIME: runtime, "VLLM_SERVER_DEV_MODE": develops}
    other = RealVllm(moe.path, moe.path.parent / "vllm.log", *options, **started)
    with other.running():
        asked = ("--engine", "vllm", "--engine-url", other.url, "--port", "0")
        done = tanbr("serve", str(moe.path), *experts(moe), *asked, cwd=tmp_path)
        alive = httpx2.get(f"{other.url}/health").is_success
    assert done.returncode == 2, done.stdout
    said = done.stderr.splitlines()[-1]  # below what is logged
    assert all(one in said for one in says)
    assert alive
