from pathlib import Path

import pytest

from cli.running import tanbr
from tanbr.cli.running import command_line


def test_the_demo_runs_and_says_where_its_report_is(tmp_path: Path) -> None:
    done = tanbr("demo", "--slots", "20", "--requests", "8", "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tanbr above the best fixed blend" in done.stdout
    assert {file.name for file in (tmp_path / "here").iterdir()} == {"report.html", "demo.json"}


def test_the_command_is_told_without_the_places_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/tanbr", "demo", "--out", "/home/me/two words/", "--seed", "3"])
    assert command_line() == "tanbr demo --out 'two words' --seed 3"
