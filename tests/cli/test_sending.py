import json
from pathlib import Path

import pytest

from cli.running import Mistake, tanbr
from serve.web.fake import FakeService
from serve.web.live import TOKEN, live


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
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_exit_code_2(mistake: Mistake, arguments, says) -> None:
    assert says in mistake(*arguments)
