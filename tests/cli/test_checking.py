from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tanbr.cli import app
from tanbr.lab import settings
from tanbr.lab.settings import Config

RUN = CliRunner()


def test_what_config_prints_is_a_configuration_and_a_section_of_one(tmp_path: Path) -> None:
    (tmp_path / "all.toml").write_text(RUN.invoke(app, ["config"], catch_exceptions=False).stdout)
    assert settings.load(tmp_path / "all.toml") == Config()
    (tmp_path / "t.toml").write_text("[serve]\nbatch = 5\n")
    said = RUN.invoke(app, ["config", "--config", f"{tmp_path}/t.toml", "--section", "serve"]).stdout
    assert "\nbatch = 5\n" in said
    assert ("[serve.rewards]" in said, "[router]" in said) == (True, False)


def test_doctor_says_what_is_there() -> None:
    done = RUN.invoke(app, ["doctor"], catch_exceptions=False)
    assert done.exit_code == 0
    for word in ("cores", "instructions", "memory", "cuda", "torch", metadata.version("numpy")):
        assert word in done.stdout
    assert "ruff" not in done.stdout  # what only developers need


@pytest.mark.parametrize(
    ("needed", "code", "says"),
    [
        ("no-such-package>=1", 2, "missing, for every command: pip install 'no-such-package'"),
        ('no-such-extra; extra == "ray"', 0, "missing, for serve --ray: pip install 'tanbr[ray]'"),  # breaks nothing
    ],
)
def test_doctor_names_what_is_missing_and_for_what(
    monkeypatch: pytest.MonkeyPatch, needed: str, code: int, says: str
) -> None:
    monkeypatch.setattr(metadata, "requires", lambda _: [needed])
    done = RUN.invoke(app, ["doctor"], catch_exceptions=False)
    assert (done.exit_code, says in done.stdout) == (code, True)
