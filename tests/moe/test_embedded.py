from pathlib import Path

import pytest

from tanbr.errors import CheckpointError
from tanbr.merge import open as open_moe
from tanbr.moe import embedded


@pytest.mark.parametrize(("kind", "family"), [("bert", "bert_moe"), ("t5", "t5_moe")])
def test_the_package_carries_models(kind: embedded.EmbeddedModel, family: str) -> None:
    held = {file.name: file.stat().st_size for file in embedded.path(kind).iterdir()}
    assert {"config.json", "model.safetensors", "tanbr.json", "survey.json"} <= set(held)
    assert sum(held.values()) < 5e6  # everybody who installs the package carries it
    moe = open_moe(embedded.path(kind))
    assert (moe.family.model_type, moe.num_experts) == (family, 8)


def test_an_installation_without_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tanbr.moe.embedded._HERE", tmp_path)
    with pytest.raises(CheckpointError, match="lacks the embedded model; install tanbr again"):
        embedded.path()
    with pytest.raises(CheckpointError, match="--preset tiny-t5"):
        embedded.path("t5")
