"""A real vLLM on the CPU, with whole models and with adapters: run by `make engines`, which builds its environment.

Left out where that is missing. An engine is started for each, and killed again and again.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from cli.running import tanbr
from engines.asking import BLENDS, answers, serving, transformers_answers
from engines.front import ADMIN_TOKEN, Front, after_a_hang, after_a_kill, front, greedy, swaps, texts, texts_of
from engines.real_engine import PYTHON, RealVllm
from engines.tiny_adapters import blended_by_peft, write_adapters
from serve.text_model import write
from tanbr.engines import connect
from tanbr.merge import Moe
from tanbr.merge import open as open_moe

pytestmark = [
    pytest.mark.skipif(PYTHON is None, reason="TANBR_VLLM_PYTHON names no Python with vLLM; `make engines` makes one"),
    pytest.mark.timeout(1500),
]
LONG = " ".join(f"w{(7 * number) % 61}" for number in range(300))  # two blocks of 128 tokens that are cached, and more
PROMPTS = [f"{LONG} w1", f"{LONG} w2", "w5 w6"]
LIMIT, SWAPS = 12, 10
SIZES = {"head_dim": 32, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"max_position_embeddings": 512}
WHOLE, ADAPTERS = "whole models", "adapters"
RUNTIME, DEVELOPS, ENABLE = "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_SERVER_DEV_MODE", "--enable-lora"


@dataclass
class Case:
    """Experts, an engine that runs their merge or their base, and what `tanbr serve` is told of them."""

    moe: Moe
    engine: RealVllm
    experts: list[str]

    @property
    def adapters(self) -> bool:
        return bool(self.experts)

    def blended(self, blend: Any) -> Any:
        """The model whose answers are expected: PEFT's own blend of adapters, or (None) our merge by transformers."""
        return blended_by_peft(self.moe, list(blend)) if self.adapters else None

    def expected(self, blend: list[float]) -> list[str]:
        return texts_of(self.moe, blend, PROMPTS, limit=LIMIT, model=self.blended(blend))

    def other_engine(self, *options: str, **settings: str) -> RealVllm:
        return RealVllm(self.engine.folder, self.engine.log, *options, **settings)

    def refused(self, url: str, folder: Path) -> str:
        """The last line that `tanbr serve` says before an engine that it does not take."""
        asked = ("--engine", "vllm", "--engine-url", url, "--port", "0", "--force")
        done = tanbr("serve", str(self.moe.path), *self.experts, *asked, cwd=folder)
        assert done.returncode == 2, done.stdout
        return done.stderr.splitlines()[-1]  # below what is logged


@pytest.fixture(scope="module", params=[WHOLE, ADAPTERS])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp("real")
    if request.param == ADAPTERS:
        moe = open_moe(**write_adapters(folder, **SIZES))
        experts = [*(word for name in moe.source.names for word in ("--expert", name)), "--no-base"]
        engine = RealVllm(
            moe.path, folder / "vllm.log", ENABLE, "--max-lora-rank", "16", **{RUNTIME: "True", DEVELOPS: "0"}
        )
    else:
        moe, experts = open_moe(write("mixtral", folder / "moe", **SIZES)), []
        engine = RealVllm(moe.export([0.25] * 4, folder / "dense"), folder / "vllm.log")
    with engine.running():
        yield Case(moe, engine, experts)


@pytest.fixture(scope="module")
def server(case: Case) -> Iterator[Front]:
    with front(case.engine.log.parent, case.moe.path, "vllm", case.engine.url, *case.experts) as made:
        yield made
    assert ADMIN_TOKEN not in case.engine.log.read_text()  # the clients' token stays with tanbr


@pytest.mark.parametrize("case", [WHOLE], indirect=True)
def test_two_engines_hold_a_panel_of_two_whole_models(case: Case) -> None:
    # Before `server` runs, which looks at the same engine every five seconds, and gives it back what it had.
    with (
        case.other_engine().running() as second,
        closing(connect(case.moe, engine="vllm", urls=[case.engine.url, second.url], models=2)) as backend,
    ):
        served = serving(backend, case.moe, models=2)
        for blends in (BLENDS[:2], BLENDS[2:]):
            served.commit(*[served.prepare(blend) for blend in blends])
            for place, blend in enumerate(blends):
                assert answers(served, place=place) == transformers_answers(case.moe, blend)


def test_ten_swaps_answer_token_for_token_as_transformers_and_peft_do_with_prefixes_cached(
    server: Front, case: Case
) -> None:
    before = case.engine.prefix_hits()
    asked = SWAPS * (2 * len(PROMPTS) + 1)
    assert swaps(server, case.moe, PROMPTS, count=SWAPS, limit=LIMIT, blended=case.blended) == (asked, asked)
    hits = case.engine.prefix_hits() - before
    assert hits >= SWAPS * len(PROMPTS[:2]) * 256  # asked again: two blocks a prompt and a version from the cache
    cards = httpx2.get(f"{case.engine.url}/v1/models").json()["data"]
    assert sum(card["parent"] is not None for card in cards) == 3 * case.adapters  # what answers, and two before it


def test_the_engine_does_what_it_is_asked_and_says_what_it_does_not(server: Front) -> None:
    how: dict[str, Any] = {"model": "tanbr", "prompt": PROMPTS[2], "max_tokens": LIMIT, "temperature": 1.0}
    how["extra_body"] = {"ignore_eos": True}  # so that there are words enough

    def ask(**said: Any) -> list[str]:
        return texts(client.completions.create(**how | said))

    with server.client() as client:
        (one,) = ask(seed=3)
        assert ask(seed=3) == [one]
        assert len({*ask(n=8)}) > 1
        stop = one.split()[1]
        pieces = client.completions.create(stream=True, stop=stop, seed=3, **how)
        assert "".join(piece.choices[0].text for piece in pieces).strip() == one[: one.index(stop)].strip()
        logged: Any = client.completions.create(logprobs=2, presence_penalty=0.5, seed=3, **how)
        assert len(logged.choices[0].logprobs.token_logprobs) == logged.usage.completion_tokens
        chosen: Any = client.completions.create(**how | {"extra_body": {"allowed_token_ids": [5], "min_tokens": LIMIT}})
        assert {*texts(chosen)[0].split()} == {"w2"}  # what only vLLM knows of
        options: Any = {"include_usage": True}
        *_, last = client.completions.create(stream=True, stream_options=options, **how)
        assert last.usage.prompt_tokens == chosen.usage.prompt_tokens
        with pytest.raises(openai.BadRequestError, match="max_model_len") as refused:
            client.completions.create(**how | {"max_tokens": 10**6})
        assert refused.value.param == "max_tokens"


def test_a_rollback_answers_as_the_version_before(server: Front, case: Case) -> None:
    for blend in ([0.0, 1.0, 0.0, 0.0], [0.25] * 4):
        server.ask("/v1/admin/pin", {"blend": blend})
    server.ask("/v1/admin/rollback")
    blend = server.ask("/v1/state").json()["blend"]
    assert blend == [0.0, 1.0, 0.0, 0.0]
    with server.client() as client:
        answer = client.completions.create(prompt=PROMPTS, **greedy(case.moe, limit=LIMIT))
    assert texts(answer) == case.expected(blend)


def test_an_engine_that_is_killed_is_a_503_and_comes_back_with_the_version_that_answered(
    server: Front, case: Case
) -> None:
    blend = [0.0, 0.0, 0.5, 0.5]
    assert after_a_kill(server, case.engine, case.moe, blend, PROMPTS, limit=LIMIT) == case.expected(blend)


@pytest.mark.parametrize("case", [ADAPTERS], indirect=True)
def test_an_engine_that_hangs_is_a_503_and_then_goes_on(server: Front, case: Case) -> None:
    after_a_hang(server, case.engine)


@pytest.mark.parametrize(
    ("case", "options", "runtime", "develops", "says"),
    [
        (ADAPTERS, (ENABLE, "--max-lora-rank", "8"), "True", "0", ("LoRA rank 9 is greater than", ENABLE)),
        (ADAPTERS, (), "True", "0", ("LoRA", ENABLE)),
        (ADAPTERS, (ENABLE, "--max-lora-rank", "16"), "False", "0", ("Not Found", ENABLE)),
        (WHOLE, (), "False", "0", ("VLLM_SERVER_DEV_MODE=1",)),
    ],
    indirect=["case"],
)
def test_an_engine_that_was_started_otherwise_is_one_sentence(
    options: tuple[str, ...], runtime: str, develops: str, says: tuple[str, ...], case: Case, tmp_path: Path
) -> None:
    case.engine.kill()
    with case.other_engine(*options, **{RUNTIME: runtime, DEVELOPS: develops}).running() as other:
        said = case.refused(other.url, tmp_path)
        assert httpx2.get(f"{other.url}/health").is_success
    assert all(one in said for one in says)
