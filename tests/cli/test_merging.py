import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moe.tiny import build
from tanbr.cli import app


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an MoE whose experts are random."""
    monkeypatch.chdir(tmp_path)
    build("bert_moe").save_pretrained(tmp_path / "moe")
    return tmp_path


def run(command: str) -> str:
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 0, (command, done.output, done.exception)
    return done.output


def test_inspect_says_the_verdict_in_80_columns(folder: Path) -> None:
    shown = run("inspect moe --out report")
    assert "do not merge" in shown
    assert max(map(len, shown.splitlines())) <= 80  # and nothing is cut to fit
    assert "…" not in shown
    assert "bert.encoder.layer.1" in shown
    assert json.loads((folder / "report" / "inspect.json").read_text())["verdict"] == "do not merge"
