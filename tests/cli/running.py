"""The command line as a user runs it."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tanbr.cli import main

TANBR = str(Path(sys.executable).with_name("tanbr"))


def tanbr(*arguments: str, cwd: Path, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command; no server answers unless one is named."""
    usual = {"OMP_NUM_THREADS": "1", "TANBR_SERVER": "http://127.0.0.1:9"}
    return subprocess.run(
        [TANBR, *arguments], capture_output=True, text=True, cwd=cwd, timeout=240, input=stdin,
        env={**os.environ, **usual, **environment},
    )  # fmt: skip


def mistake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cwd: Path, *arguments: str) -> str:
    """Run a command that fails, in this process; its one sentence. It exits with 2, and leaves no file behind."""
    monkeypatch.chdir(cwd)
    monkeypatch.setattr("sys.argv", ["tanbr", *arguments])
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setenv("TANBR_SERVER", "http://127.0.0.1:9")
    with pytest.raises(SystemExit) as left:
        main()
    error = capsys.readouterr().err
    assert left.value.code == 2
    assert error.count("\n") == 1
    assert not list(cwd.iterdir())
    return error
