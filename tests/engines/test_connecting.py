from pathlib import Path

import numpy as np
import pytest

from engines.fake_engine import FakeVllm
from tanbr.engines.connecting import builder, connect, connected
from tanbr.errors import ConfigError
from tanbr.merge import Moe
from tanbr.serve.config import ServeConfig

URL = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("settings", "models", "says"),
    [
        ({"engine": "vllm"}, 1, "--engine vllm needs --engine-url"),
        ({"engine_url": URL}, 1, "--engine-url needs --engine"),
        ({"engine": "vllm", "engine_url": URL}, 2, "an engine holds one model (got models 2)"),
        ({"engine": "vllm", "engine_url": URL, "backend": "int8"}, 1, "leave --backend out"),
    ],
)
def test_settings_that_do_not_go_together_are_one_sentence(
    settings: dict[str, str], models: int, says: str, mixtral: Moe
) -> None:
    with pytest.raises(ConfigError) as error:
        connected(ServeConfig(**settings), mixtral, models=models, fingerprint="f")
    assert says in str(error.value)


def test_without_an_engine_there_is_none(mixtral: Moe) -> None:
    assert connected(ServeConfig(), mixtral, models=3, fingerprint="f") is None


def test_a_blend_is_loaded_when_a_server_goes_on(vllm: FakeVllm, mixtral: Moe, tmp_path: Path) -> None:
    config = ServeConfig(engine="vllm", engine_url=vllm.url, engine_folder=str(tmp_path))
    blend = np.array([1.0, 0, 0, 0])
    for wanted, loads in ((None, 0), (blend, 1), (blend, 1)):
        made = connected(config, mixtral, models=1, fingerprint="f")
        assert made is not None
        assert builder(made)(mixtral, blend=wanted, device="cpu", probes=list, least_agreement=0.0) is made
        assert vllm.loads == loads
        assert made.available == (wanted is not None)
        assert len(list(tmp_path.iterdir())) == 1
        made.close()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_for_an_engine_that_is_not_there(mixtral: Moe, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no engine answers"):
        connect(mixtral, engine="vllm", url=URL, fingerprint="f", folder=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_engines_key_is_sent(vllm: FakeVllm, mixtral: Moe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANBR_ENGINE_TOKEN", "a-key")
    connect(mixtral, engine="vllm", url=vllm.url, fingerprint="f").close()
    assert vllm.keys == {"Bearer a-key"}
