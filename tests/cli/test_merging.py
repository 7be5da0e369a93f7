import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tanbr.merge
from moe.tiny import build
from tanbr.cli import app


def test_align_command(tmp_path) -> None:
    build("bert_moe").save_pretrained(tmp_path / "moe")
    result = CliRunner().invoke(app, ["align", str(tmp_path / "moe"), str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert tanbr.merge.open(tmp_path / "out").num_experts == 4


def test_inspect_command(tmp_path) -> None:
    build("bert_moe").save_pretrained(tmp_path / "moe")
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "moe"), "--out", str(tmp_path / "report")])
    assert result.exit_code == 0, result.output
    assert "do not merge" in result.output
    assert max(map(len, result.output.splitlines())) <= 80  # and nothing is cut to fit
    assert "…" not in result.output
    for name in ("site", "distance", "cosine", "in place", "match", "moved", "bert.encoder.layer.1"):
        assert name in result.output
    report = json.loads((tmp_path / "report" / "inspect.json").read_text())
    assert report["verdict"] == "do not merge"


def test_dense_models_become_an_moe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    build("bert_moe").save_pretrained(tmp_path / "moe")
    for arguments in (
        "merge moe dense --blend even --force",
        "merge moe other --blend one-hot:1",
        "merge dense copies --mode moe --copies 3",
        "merge dense again --mode moe --expert dense --expert other",
    ):
        done = CliRunner().invoke(app, arguments.split())
        assert done.exit_code == 0, (arguments, done.output, done.exception)
    assert tanbr.merge.open(tmp_path / "copies").num_experts == 3
    assert tanbr.merge.open(tmp_path / "again").num_experts == 2
