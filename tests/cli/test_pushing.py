from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cli.running import Mistake, tanbr
from engines.asking import PROMPTS, before, serving, transformers_answers
from engines.fake_engine import FakeVllm
from engines.tiny_adapters import write_adapters
from serve.text_model import write
from tanbr.merge import Moe
from tanbr.merge import open as open_moe


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Moe:
    return open_moe(write("mixtral", tmp_path_factory.mktemp("pushed") / "moe"))


@pytest.fixture(scope="module")
def engine(moe: Moe) -> Iterator[FakeVllm]:
    with FakeVllm(moe.export([0.25] * 4, moe.path.parent / "dense")).running() as running:
        yield running


def test_one_blend_is_loaded_by_hand(moe: Moe, engine: FakeVllm, tmp_path: Path) -> None:
    done = tanbr("push", str(moe.path), "--blend", "0,0.5,0.5,0", "--to", engine.url, "--force", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert engine.label in done.stdout
    assert engine.loads == 1
    assert list(tmp_path.iterdir()) == []
    blend = [0, 0.5, 0.5, 0]
    with before(engine, moe) as backend:  # a server finds what was pushed
        assert backend.label_of(np.array(blend)) == engine.label
        served = serving(backend, moe)
        served.swap(blend)
        assert engine.loads == 1
        answers = backend.generate(served.padded(PROMPTS)[0], limits=[5] * 3, on_step=lambda _: ())
        assert [one.tokens for one in answers if one] == transformers_answers(moe, blend, PROMPTS, limit=5)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Moe:
    return open_moe(**write_adapters(tmp_path_factory.mktemp("adapters")))


def test_a_blend_of_adapters_is_loaded_by_hand_from_a_folder_that_stays(adapters: Moe, tmp_path: Path) -> None:
    experts = [word for folder in adapters.source.names for word in ("--expert", folder)]
    lora = FakeVllm(adapters.path)
    with lora.running():
        for takes in (False, True):
            lora.takes_adapters = takes
            asked = ("--blend", "0.5,0.5,0,0", "--to", lora.url, "--as-adapter", "one")
            done = tanbr("push", str(adapters.path), *experts, *asked, cwd=tmp_path)
            assert done.returncode == (0 if takes else 2), done.stderr
            assert takes or f"the engine at {lora.url} takes no adapters; start vLLM with" in done.stderr
            assert (tmp_path / "one").exists() is takes
        ((name, (folder, _)),) = lora.adapters.items()
        assert f"answers with {name} where it is asked for" in " ".join(done.stdout.split())
        assert Path(folder) == (tmp_path / "one").resolve()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--to", "http://127.0.0.1:9", "--blend", "even"), "no engine answers at http://127.0.0.1:9"),
        (("--to", "here", "--blend", "even"), "an engine's URL must be like"),
        (("--to", "{url}"), "a merge needs --blend"),
        (("--to", "{url}", "--blend", "0.5,0.5"), "blend must be 4 numbers"),
        (("--to", "{url}", "--blend", "0.5,0.6,0,0"), "must sum to 1"),
        (("--to", "{url}", "--blend", "even", "--engine", "llamacpp"), "/props with 404"),
        (("--to", "{url}", "--blend", "even", "--as-adapter", "one"), "only a blend of adapters can be written"),
        (("--to", "{url}", "--blend", "even", "--engine", "llamacpp", "--as-adapter", "one"), "is for vllm"),
    ],
)
def test_a_mistake_is_one_sentence_and_the_engine_keeps_what_it_has(
    mistake: Mistake, moe: Moe, engine: FakeVllm, arguments: tuple[str, ...], says: str
) -> None:
    held = engine.label, engine.loads
    given = [one.format(url=engine.url) for one in arguments]
    assert says in mistake("push", str(moe.path), "--force", *given)
    assert (engine.label, engine.loads) == held


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--engine", "vllm"), "--engine vllm needs --engine-url"),
        (("--engine-url", "http://127.0.0.1:9"), "--engine-url needs --engine"),
        (("--engine", "vllm", "--engine-url", "http://127.0.0.1:9"), "no engine answers at http://127.0.0.1:9"),
        (("--engine", "vllm", "--engine-url", "{url}", "--models", "2"), "an engine holds one model; leave --models"),
        (("--engine", "vllm", "--engine-url", "{url}", "--backend", "int8"), "leave --backend out"),
    ],
)
def test_a_mistake_of_serve_before_an_engine(
    mistake: Mistake, moe: Moe, engine: FakeVllm, arguments: tuple[str, ...], says: str
) -> None:
    given = [one.format(url=engine.url) for one in arguments]
    assert says in mistake("serve", str(moe.path), "--force", "--port", "0", *given)
