from pathlib import Path
from typing import get_args

import pytest

from tanbr.errors import CheckpointError
from tanbr.merge import open as open_moe
from tanbr.moe import embedded


@pytest.mark.parametrize("kind", get_args(embedded.EmbeddedModel))
def test_the_package_carries_models(kind: embedded.EmbeddedModel) -> None:
    held = {file.name: file.stat().st_size for file in embedded.path(kind).iterdir()}
    assert {"config.json", "model.safetensors", "tanbr.json", "survey.json"} <= set(held)
    assert sum(held.values()) < 5e6  # everybody who installs the package carries it


def test_one_answers_by_a_head_and_the_other_writes() -> None:
    kinds = {kind: open_moe(embedded.path(kind)) for kind in get_args(embedded.EmbeddedModel)}
    assert {kind: moe.family.model_type for kind, moe in kinds.items()} == {"bert": "bert_moe", "t5": "t5_moe"}
    assert {moe.num_experts for moe in kinds.values()} == {8}


def test_an_installation_without_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tanbr.moe.embedded._HERE", tmp_path)
    with pytest.raises(CheckpointError, match="lacks the embedded model; install tanbr again"):
        embedded.path()
    with pytest.raises(CheckpointError, match="--preset tiny-t5"):
        embedded.path("t5")
