from pathlib import Path

import pytest

from engines.asking import before
from engines.fake_engine import FakeVllm
from serve.text_model import write
from tanbr.engines.connection import EngineLost
from tanbr.engines.dialect import EngineRefused
from tanbr.errors import ConfigError, TanbrError
from tanbr.merge import Moe
from tanbr.merge import open as open_moe


def refused(engine: FakeVllm, moe: Moe, kind: type[TanbrError], says: str) -> None:
    """The sentence, and that nothing was loaded."""
    with pytest.raises(kind) as error, before(engine, moe):
        pass
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert engine.loads == 0


def test_another_model_is_told_by_its_tensors(vllm: FakeVllm, tmp_path: Path) -> None:
    wider = open_moe(write("mixtral", tmp_path / "wider", intermediate_size=80))
    refused(vllm, wider, ConfigError, "in a merge of")
    refused(vllm, wider, ConfigError, "down_proj.weight is (")


def test_another_model_is_told_by_its_positions(vllm: FakeVllm, mixtral: Moe) -> None:
    vllm.positions = 10**6
    refused(vllm, mixtral, ConfigError, "reads 1000000 tokens")


def test_another_model_is_told_by_its_tokenizer(vllm: FakeVllm, mixtral: Moe, tmp_path: Path) -> None:
    words = open_moe(write("mixtral", tmp_path / "words"))
    file = tmp_path / "words" / "tokenizer.json"
    file.write_text(file.read_text().replace('"<unk>": 2', '"<unk>": 9').replace('"w6": 9', '"w6": 2'))
    refused(vllm, words, ConfigError, "has another tokenizer")


@pytest.mark.parametrize(("theirs", "says"), [("bfloat16", "--dtype float32"), ("float16", "computes in float16")])
def test_a_dtype_that_loses_digits_is_refused(vllm: FakeVllm, mixtral: Moe, theirs: str, says: str) -> None:
    vllm.dtype = theirs
    refused(vllm, mixtral, ConfigError, says)


def test_quantised_weights_are_refused(vllm: FakeVllm, mixtral: Moe) -> None:
    vllm.quantised = "fp8"
    refused(vllm, mixtral, ConfigError, "quantises its weights (fp8)")


def test_an_engine_without_development_routes(vllm: FakeVllm, mixtral: Moe) -> None:
    vllm.dev_mode = False
    refused(vllm, mixtral, EngineRefused, "VLLM_SERVER_DEV_MODE=1")


def test_an_engine_that_is_down(vllm: FakeVllm, mixtral: Moe) -> None:
    vllm.kill()
    refused(vllm, mixtral, EngineLost, f"no engine answers at {vllm.url}")
    vllm.start()


def test_a_model_that_does_not_go_on_from_its_prompt_is_refused(vllm: FakeVllm, tmp_path: Path) -> None:
    moe = open_moe(write("t5_moe", tmp_path / "t5"))
    refused(vllm, moe, ConfigError, "vllm runs causal language models")
    assert vllm.calls == []


def test_an_engine_started_elsewhere_is_judged_by_the_rest(vllm: FakeVllm, mixtral: Moe) -> None:
    vllm.folder = Path("some/hub-id")
    with before(vllm, mixtral) as backend:
        assert backend.positions == vllm.positions
