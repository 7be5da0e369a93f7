import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moe.tiny import build
from tanbr.cli import app


def test_inspect_says_the_verdict_in_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    build("bert_moe").save_pretrained(tmp_path / "moe")  # whose experts are random
    shown = CliRunner().invoke(app, ["inspect", "moe", "--out", "report"], catch_exceptions=False).output
    assert "do not merge" in shown
    assert max(map(len, shown.splitlines())) <= 80  # and nothing is cut to fit
    assert "…" not in shown
    assert "bert.encoder.layer.1" in shown
    assert json.loads((tmp_path / "report" / "inspect.json").read_text())["verdict"] == "do not merge"
