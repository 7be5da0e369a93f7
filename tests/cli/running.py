"""The command line as a user runs it, of this tree: what is installed may be another one."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tanbr as package
from tanbr.cli import main

TANBR = (sys.executable, "-m", "tanbr")


def environment(**more: str) -> dict[str, str]:
    """This process's environment without settings of tanbr, and with this tree."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TANBR_")}
    tree = {"PYTHONPATH": str(Path(package.__file__).parents[1])}
    return kept | tree | {"OMP_NUM_THREADS": "1", "TANBR_SERVER": "http://127.0.0.1:9"} | more


def tanbr(*arguments: str, cwd: Path, stdin: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command; no server answers unless one is named."""
    return subprocess.run(
        [*TANBR, *arguments], capture_output=True, text=True, cwd=cwd, timeout=240, input=stdin,
        env=environment(**settings),
    )  # fmt: skip


def mistake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cwd: Path, *arguments: str) -> str:
    """Run a command that fails, in this process; its one sentence. It exits with 2, and leaves no file behind."""
    monkeypatch.chdir(cwd)
    monkeypatch.setattr("sys.argv", ["tanbr", *arguments])
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setenv("TANBR_SERVER", "http://127.0.0.1:9")
    before = sorted(cwd.iterdir())
    with pytest.raises(SystemExit) as left:
        main()
    error = capsys.readouterr().err
    assert left.value.code == 2
    assert error.count("\n") == 1
    assert sorted(cwd.iterdir()) == before
    return error
