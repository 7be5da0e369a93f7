import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tanbr as package
from cli.running import environment, tanbr
from tanbr.cli import app
from tanbr.cli.options import command_line


def test_the_version_as_a_script_and_as_a_module(tmp_path: Path) -> None:
    installed = Path(sys.executable).with_name("tanbr")
    script = subprocess.run([installed, "--version"], capture_output=True, text=True, cwd=tmp_path, env=environment())
    assert tanbr("--version", cwd=tmp_path).stdout == script.stdout == f"tanbr {package.__version__}\n"


def test_help_says_what_exit_codes_mean_and_loads_nothing_that_takes_seconds(tmp_path: Path) -> None:
    assert "Exit codes: 0 done; 2 a mistake" in CliRunner().invoke(app, ["--help"]).output
    heavy = ("torch", "scipy", "sklearn", "fastapi", "httpx2", "uvicorn")
    check = f"import sys, tanbr.cli; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", check], cwd=tmp_path, env=environment(), timeout=60).returncode == 0


def test_the_command_is_told_without_the_places_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/tanbr", "demo", "--out", "/home/me/two words/", "--seed", "3"])
    assert command_line() == "tanbr demo --out 'two words' --seed 3"
