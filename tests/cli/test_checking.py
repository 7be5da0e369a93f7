import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tanbr.cli import app, machine
from tanbr.errors import ConfigError
from tanbr.lab import settings
from tanbr.lab.settings import Config

RUN = CliRunner()


def test_what_config_prints_is_a_configuration(tmp_path: Path) -> None:
    done = RUN.invoke(app, ["config"], catch_exceptions=False)
    (tmp_path / "tanbr.toml").write_text(done.stdout)
    assert settings.load(tmp_path / "tanbr.toml") == Config()


def test_config_shows_a_file_and_a_section(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("[serve]\nbatch = 5\n")
    done = RUN.invoke(app, ["config", "--config", f"{tmp_path}/t.toml", "--section", "serve"], catch_exceptions=False)
    assert "\nbatch = 5\n" in done.stdout
    assert "[serve.rewards]" in done.stdout
    assert "[router]" not in done.stdout
    with pytest.raises(ConfigError, match="no section 'server'; there are"):
        RUN.invoke(app, ["config", "--section", "server"], catch_exceptions=False)


def test_doctor_says_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    done = RUN.invoke(app, ["doctor", "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    assert done.exit_code == 0
    assert {"cores", "instructions", "memory", "cuda"} <= set(found["facts"])
    assert {part["name"] for part in found["packages"] if part["version"]} >= {"torch", "numpy"}
    assert not found["broken"]


def test_doctor_names_what_is_missing_and_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PACKAGES", {"no-such-package": "serve", "datasets": "--data hub"})
    monkeypatch.setattr(machine, "OPTIONAL", {"datasets": "tanbr[hub]"})
    done = RUN.invoke(app, ["doctor"], catch_exceptions=False)
    assert done.exit_code == 2
    assert "no-such-package, for serve: pip install 'no-such-package'" in done.stdout
    monkeypatch.setattr(machine, "PACKAGES", {"no-such-extra": "--data hub"})
    monkeypatch.setattr(machine, "OPTIONAL", {"no-such-extra": "tanbr[hub]"})
    done = RUN.invoke(app, ["doctor"], catch_exceptions=False)
    assert (done.exit_code, "pip install 'tanbr[hub]'" in done.stdout) == (0, True)  # an extra breaks nothing
