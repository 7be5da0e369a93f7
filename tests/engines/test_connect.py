import json
from pathlib import Path

import numpy as np
import pytest

from engines.asking import before
from engines.fake_engine import FakeVllm
from serve.text_model import write
from tanbr.engines import connect, engine_builder
from tanbr.engines.connection import EngineLost, EngineRefused
from tanbr.errors import ConfigError, TanbrError
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.serve.config import ServeConfig
from tanbr.serve.service import Service

URL = "http://127.0.0.1:9"


def test_without_its_engine_a_service_does_not_answer_by_itself_and_writes_nothing(
    mixtral: Moe, tmp_path: Path
) -> None:
    assert engine_builder(ServeConfig()) is None
    with pytest.raises(ConfigError, match="engine_builder"):
        Service(mixtral, tasks=(), config=ServeConfig(engine="vllm", engine_urls=(URL,)), state=tmp_path / "state")
    with pytest.raises(EngineLost, match="no engine answers"):
        connect(mixtral, engine="vllm", urls=[URL], folder=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_blend_is_loaded_when_a_server_goes_on(vllm: FakeVllm, mixtral: Moe, tmp_path: Path) -> None:
    build = engine_builder(ServeConfig(engine="vllm", engine_urls=(vllm.url,), engine_folder=str(tmp_path)))
    assert build is not None
    blend = np.array([1.0, 0, 0, 0])
    vllm.paused = True  # as a server that was killed while it changed weights leaves it
    for wanted in (None, blend):
        made = build(mixtral, blend=wanted, models=1, device="cpu", probes=list, precision="fp32")
        loaded = wanted is not None
        assert (vllm.loads, made.available, vllm.paused) == (loaded, loaded, not loaded)
        assert len(list(tmp_path.iterdir())) == 1
        made.close()
        assert list(tmp_path.iterdir()) == []
    vllm.refuses = "no"
    with pytest.raises(TanbrError, match="cannot be loaded"):
        build(mixtral, blend=np.array([0, 1.0, 0, 0]), models=1, device="cpu", probes=list, precision="fp32")
    assert list(tmp_path.iterdir()) == []


def test_the_engines_key_is_sent(vllm: FakeVllm, mixtral: Moe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANBR_ENGINE_TOKEN", "a-key")
    connect(mixtral, engine="vllm", urls=[vllm.url]).close()
    assert vllm.keys == {"Bearer a-key"}


# --- an engine that runs another model --------------------------------------------------------------------------------


def refused(engine: FakeVllm, moe: Moe, kind: type[TanbrError], says: str) -> None:
    """The sentence, and that nothing was loaded."""
    with pytest.raises(kind) as error, before(engine, moe):
        pass
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert engine.loads == 0


@pytest.mark.parametrize(
    ("sizes", "words", "says"),
    [({"intermediate_size": 80}, {}, "down_proj.weight is ("), ({}, {"w6": 2, "<unk>": 9}, "has another tokenizer")],
)
def test_another_model_is_told_by_its_tensors_or_its_tokenizer(
    sizes: dict[str, int], words: dict[str, int], says: str, vllm: FakeVllm, tmp_path: Path
) -> None:
    moe = open_moe(write("mixtral", tmp_path / "other", **sizes))
    file = tmp_path / "other" / "tokenizer.json"
    read = json.loads(file.read_text())
    read["model"]["vocab"] |= words
    file.write_text(json.dumps(read))
    refused(vllm, moe, ConfigError, says)


@pytest.mark.parametrize(
    ("setting", "theirs", "kind", "says"),
    [
        ("positions", 10**6, ConfigError, "reads 1000000 tokens"),
        ("dtype", "bfloat16", ConfigError, "--dtype float32"),
        ("dtype", "float16", ConfigError, "computes in float16"),
        ("quantised", "fp8", ConfigError, "quantises its weights (fp8)"),
        ("dev_mode", False, EngineRefused, "VLLM_SERVER_DEV_MODE=1"),
    ],
)
def test_an_engine_that_was_started_otherwise_is_refused(
    setting: str, theirs: object, kind: type[TanbrError], says: str, vllm: FakeVllm, mixtral: Moe
) -> None:
    setattr(vllm, setting, theirs)
    refused(vllm, mixtral, kind, says)


def test_a_model_that_does_not_go_on_from_its_prompt_is_refused(vllm: FakeVllm, tmp_path: Path) -> None:
    moe = open_moe(write("t5_moe", tmp_path / "t5"))
    refused(vllm, moe, ConfigError, "vllm runs causal language models")
    assert vllm.calls == []


def test_an_engine_started_elsewhere_is_judged_by_the_rest(vllm: FakeVllm, mixtral: Moe) -> None:
    vllm.folder = Path("some/hub-id")
    with before(vllm, mixtral) as backend:
        assert backend.positions == vllm.positions
