import subprocess
import sys
from pathlib import Path

import pytest

from cli.running import Mistake, environment, tanbr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("serve", "nowhere"), "nowhere"),
        (("serve", "--blend", "half"), "--blend must be even, proportional, or weights by comma (got 'half')"),
        (("serve", "--blend", "0.5,0.6", "--port", "0"), "serve.blend: blend must be 8 numbers"),
        (("serve", "--survey", "nowhere.json", "--port", "0"), "nowhere.json holds no survey"),
        (("serve", "--config", "none.toml"), "cannot read the configuration none.toml"),
        (("serve", "--slot-requests", "0"), "options: serve.slot_requests: Input should be greater than or equal to 1"),
        (("serve", "--host", "no.such.host.invalid"), "cannot listen on no.such.host.invalid:8000"),
        (("serve", "--token-file", "none"), "cannot read the token in none: No such file"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_exit_code_2(mistake: Mistake, arguments, says) -> None:
    assert says in mistake(*arguments)


def test_a_device_that_is_not_there_is_one_sentence_and_leaves_nothing_behind(mistake: Mistake, tmp_path: Path) -> None:
    (tmp_path / "there.toml").write_text('[serve]\ndevice = "cuda:97"\n')
    says = mistake("serve", "--config", "there.toml", "--port", "0")
    assert "device must be one that torch can use here (got 'cuda:97'" in says


def test_a_port_that_is_taken_is_found_out_before_the_model_is_loaded(tmp_path: Path, url: str) -> None:
    done = tanbr("serve", "--port", url.rpartition(":")[2], cwd=tmp_path)
    assert done.returncode == 2
    assert "Address already in use" in done.stderr
    check = "import sys, tanbr.serve.web.server; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=tmp_path, env=environment(), timeout=60).returncode == 0


@pytest.mark.parametrize("command", ["serve", "send", "traffic", "replay"])
def test_help_has_an_example(tmp_path: Path, command: str) -> None:
    done = tanbr(command, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "Example" in done.stdout
    assert f"tanbr {command}" in done.stdout


def test_help_loads_nothing_that_takes_seconds(tmp_path: Path) -> None:
    heavy = ("torch", "scipy", "sklearn", "fastapi", "httpx2", "uvicorn")
    check = f"import sys, tanbr.cli; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", check], cwd=tmp_path, env=environment(), timeout=60).returncode == 0
