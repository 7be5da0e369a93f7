from pathlib import Path

import pytest

from tanbr.errors import CheckpointError
from tanbr.moe import embedded


def test_the_package_carries_a_model() -> None:
    assert {"config.json", "model.safetensors", "tanbr.json"} <= {file.name for file in embedded.path().iterdir()}


def test_an_installation_without_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tanbr.moe.embedded._FOLDER", tmp_path)
    with pytest.raises(CheckpointError, match="lacks the embedded model; install tanbr again"):
        embedded.path()
