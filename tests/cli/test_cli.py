import subprocess
import sys
from pathlib import Path

import pytest

import tanbr as package
from cli.running import Mistake, environment, tanbr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("demo", "--traffic", "chaotic"), "unknown kind of traffic 'chaotic'; choose one of fixed"),
        (("demo", "--config", "none.toml"), "cannot read the configuration none.toml: No such file"),
        (("demo", "--config", "bad.toml"), "unknown key 'router.colour'"),
        (("demo", "--config", "deep.toml"), "deep.toml is nested too deeply"),
        (("demo", "--out", "file"), "cannot write file/"),
        (("demo", "--alpha", "0"), "alpha above 0"),
        (("pretrain", "--preset", "huge"), "unknown preset 'huge'; choose one of tiny"),
        (("merge", "nowhere", "out", "--blend", "even"), "nowhere"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    mistake: Mistake, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    (tmp_path / "bad.toml").write_text("[router]\ncolour = 'red'\n")
    (tmp_path / "deep.toml").write_text(f"a = {'[' * 5_000}{']' * 5_000}")
    (tmp_path / "file").write_text("keep me")
    assert says in mistake(*arguments)
    assert (tmp_path / "file").read_text() == "keep me"


@pytest.mark.parametrize("command", ["demo", "pretrain", "merge", "inspect", "upcycle", "config", "doctor"])
def test_help_has_an_example(tmp_path: Path, command: str) -> None:
    done = tanbr(command, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "Example" in done.stdout
    assert f"tanbr {command}" in done.stdout


def test_the_version_as_a_script_and_as_a_module(tmp_path: Path) -> None:
    installed = Path(sys.executable).with_name("tanbr")
    script = subprocess.run([installed, "--version"], capture_output=True, text=True, cwd=tmp_path, env=environment())
    assert tanbr("--version", cwd=tmp_path).stdout == script.stdout == f"tanbr {package.__version__}\n"


def test_help_says_what_exit_codes_mean_and_completion_is_there(tmp_path: Path) -> None:
    done = tanbr("--help", cwd=tmp_path)
    assert "Exit codes: 0 done; 2 a mistake" in done.stdout
    assert "--install-completion" in done.stdout


def test_a_corrupt_embedded_model_is_named(mistake: Mistake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tanbr.moe.embedded._HERE", tmp_path)
    monkeypatch.setattr("tanbr.moe.embedded._FOLDERS", {"bert": ("broken", "tiny")})
    assert "lacks the embedded model" in mistake("demo")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"model_type": "bert_moe"}')
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"\x00" * 64)
    assert "broken" in mistake("demo")
