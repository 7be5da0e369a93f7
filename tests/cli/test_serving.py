import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.running import environment, tanbr
from serve.web.fake import FakeService
from serve.web.live import BOTH, TOKEN, live
from tanbr.cli import main


@pytest.fixture(scope="module")
def service() -> FakeService:
    return FakeService()


@pytest.fixture(scope="module")
def url(service: FakeService) -> Iterator[str]:
    with live(service, tokens=BOTH) as address:
        yield address


def test_send_shows_answers_and_gives_feedback(tmp_path: Path, url: str, service: FakeService) -> None:
    done = tanbr(
        "send", "a fine film", "one\ttwo", "--feedback", "1", cwd=tmp_path, TANBR_SERVER=url, TANBR_TOKEN=TOKEN
    )
    assert done.returncode == 0, done.stderr
    assert service.calls[-1] == ("submit", ["a fine film", ("one", "two")])
    assert "feedback: 2 accepted, 0 repeated, 0 unknown" in done.stdout
    assert "merge version 3" in done.stdout


def test_send_reads_files_and_pipes_and_writes_json(tmp_path: Path, url: str, service: FakeService) -> None:
    (tmp_path / "texts").write_text("first\n\nsecond\tpair\n")
    setting = {"cwd": tmp_path, "TANBR_SERVER": url, "TANBR_TOKEN": TOKEN}
    done = tanbr("send", "--file", "texts", "--labels", "good,bad", "--json", **setting)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    outputs = json.loads(done.stdout)["outputs"]
    assert [set(output["scores"]) for output in outputs] == [{"good", "bad"}] * 2
    piped = tanbr("send", "--json", stdin="from a pipe\n", **setting)  # type: ignore[arg-type]
    (output,) = json.loads(piped.stdout)["outputs"]
    later = tanbr("send", "--id", output["request_id"], "--feedback", "0.5", "--task", "mood", **setting)  # type: ignore[arg-type]
    assert "1 accepted" in later.stdout
    given = service.given[output["request_id"]]
    assert given is not None
    assert (given.reward, given.task) == (0.5, "mood")


def test_send_talks_to_a_model_that_writes(tmp_path: Path) -> None:
    with live(FakeService("text")) as url:
        done = tanbr("send", "say this", "--json", cwd=tmp_path, TANBR_SERVER=url)
        assert json.loads(done.stdout)["choices"][0]["text"] == "SAY THIS"
        pair = tanbr("send", "one\ttwo", cwd=tmp_path, TANBR_SERVER=url)
        assert pair.returncode == 2
        assert "the model there writes" in pair.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("send", "a text"), "cannot reach http://127.0.0.1:9"),
        (("send", "a text", "--server", "not a url"), "not a url"),
        (("send",), "there is no text to send"),
        (("send", "a", "--file", "b"), "give texts, or --file, not both"),
        (("send", "--file", "none"), "cannot read none: No such file"),
        (("send", "--id", "x"), "--id needs --feedback"),
        (("traffic", "--traffic", "wild"), "unknown kind of traffic 'wild'"),
        (("traffic", "--data", "nowhere"), "no GLUE folder at nowhere"),
        (("traffic", "--slots", "1"), "cannot reach http://127.0.0.1:9"),
        (("replay", "nowhere"), "nowhere holds no log of a server"),
        (("replay", "nowhere", "--routers", "oracle"), "unknown router 'oracle'; known: tanbr"),
        (("serve", "nowhere"), "nowhere"),
        (("serve", "--blend", "half"), "--blend must be even, proportional, or weights by comma (got 'half')"),
        (("serve", "--blend", "0.5,0.6", "--port", "0"), "serve.blend: blend must be 8 numbers"),
        (("serve", "--survey", "nowhere.json", "--port", "0"), "nowhere.json holds no survey"),
        (("backup", "nowhere", "copy"), "nowhere holds no state of a server"),
        (("serve", "--config", "none.toml"), "cannot read the configuration none.toml"),
        (("serve", "--slot-requests", "0"), "options: serve.slot_requests: Input should be greater than or equal to 1"),
        (("serve", "--host", "no.such.host.invalid"), "cannot listen on no.such.host.invalid:8000"),
        (("serve", "--token-file", "none"), "cannot read the token in none: No such file"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_exit_code_2(
    tmp_path: Path,
    arguments: tuple[str, ...],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["tanbr", *arguments])
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setenv("TANBR_SERVER", "http://127.0.0.1:9")
    with pytest.raises(SystemExit) as left:
        main()
    error = capsys.readouterr().err
    assert left.value.code == 2
    assert says in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_device_that_is_not_there_is_one_sentence_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "there.toml").write_text('[serve]\ndevice = "cuda:97"\n')
    done = tanbr("serve", "--config", "there.toml", "--port", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert "device must be one that torch can use here (got 'cuda:97'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["there.toml"]


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


def test_help_loads_neither_torch_nor_the_web(tmp_path: Path) -> None:
    heavy = ("torch", "fastapi", "httpx2", "uvicorn")
    check = f"import sys, tanbr.cli; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", check], cwd=tmp_path, env=environment(), timeout=60).returncode == 0
