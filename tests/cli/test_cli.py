import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

import tanbr as package
from cli.running import environment, tanbr
from tanbr.cli import app
from tanbr.cli.options import Given, command_line, options_of
from tanbr.config import Section

COMMANDS = list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_every_command_shows_examples_and_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        shown = CliRunner().invoke(app, [name, "--help"]).output
        assert f"tanbr {name}" in shown.split("Examples:")[1]
        assert not command.hidden
        assert not [option.name for option in command.params if getattr(option, "hidden", False)]


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


class Kitchen(Section):
    """Settings of every kind."""

    ovens: int = Field(default=2, ge=1)
    """Ovens that are hot; each takes a minute to heat."""
    mode: Literal["slow", "fast"] | None = None
    """How to cook."""
    dry: bool = False
    """Whether nothing is cooked."""
    cooks: tuple[str, ...] = ()
    """Who cooks."""
    shares: Literal["even"] | tuple[float, ...] | None = None
    """What each gets."""


def test_options_are_made_of_a_sections_fields() -> None:
    kitchen, seen = typer.Typer(), []

    @kitchen.command()
    @options_of(Kitchen, "given", "ovens", "mode", "dry", common=["cooks"], advanced=["shares"])
    def cook(given: Given, name: str = "soup") -> None:
        seen.append((name, given))

    asked = "--ovens 3 --mode fast --dry --cook a --cook b --shares 0.5,0.5 --name tea"
    for arguments in (asked, "--shares even", ""):
        assert CliRunner().invoke(kitchen, arguments.split()).exit_code == 0
    everything = {"ovens": 3, "mode": "fast", "dry": True, "cooks": ("a", "b"), "shares": (0.5, 0.5)}
    assert seen == [("tea", everything), ("soup", {"shares": "even"}), ("soup", {})]
    help_text = " ".join(CliRunner().invoke(kitchen, ["--help"]).output.split())
    assert "Ovens that are hot. Default: 2." in help_text
    assert re.search(r"How to cook \(slow, fast\)\.", help_text)
    assert CliRunner().invoke(kitchen, ["--mode", "raw"]).exit_code == 2
