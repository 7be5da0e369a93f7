import json
from pathlib import Path

from cli.running import tanbr
from serve.web.fake import FakeService
from serve.web.live import TOKEN, live
from tanbr.lab.tasks import tiny


def test_send_shows_answers_and_gives_feedback(tmp_path: Path, url: str, service: FakeService) -> None:
    asked = ("send", "a fine film", "one\ttwo", "--feedback", "1")
    done = tanbr(*asked, cwd=tmp_path, TANBR_SERVER=url, TANBR_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    assert service.calls[-1] == ("submit", ["a fine film", ("one", "two")])
    assert [given.reward for given in list(service.given.values())[-2:] if given is not None] == [1.0, 1.0]
    assert "feedback: 2 accepted, 0 repeated, 0 unknown" in done.stdout
    assert "merge version 3" in done.stdout


def test_send_shows_the_answer_though_the_feedback_is_refused(tmp_path: Path, url: str, service: FakeService) -> None:
    for more in ((), ("--json",)):
        done = tanbr("send", "a fine film", "--feedback", "7", *more, cwd=tmp_path, TANBR_SERVER=url, TANBR_TOKEN=TOKEN)
        assert done.returncode == 2
        assert f"r{len(service.given) - 1}" in done.stdout
        assert "feedback[0].reward must be less than or equal to 1" in done.stderr


def test_send_reads_a_pipe_and_writes_a_line_of_json(tmp_path: Path, url: str, service: FakeService) -> None:
    piped = "first\n\nsecond\tpair\n"
    done = tanbr("send", "--json", "--feedback", "0.5", stdin=piped, cwd=tmp_path, TANBR_SERVER=url, TANBR_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    assert service.calls[-1] == ("submit", ["first", ("second", "pair")])
    (line,) = done.stdout.splitlines()
    said = json.loads(line)
    assert said["feedback"] == {"accepted": 2, "repeated": 0, "unknown": 0}
    given = [service.given[output["request_id"]] for output in said["outputs"]]
    assert [one.reward for one in given if one is not None] == [0.5, 0.5]


def test_send_talks_to_a_model_that_writes(tmp_path: Path) -> None:
    with live(FakeService("text")) as url:
        assert "SAY THIS" in tanbr("send", "say this", cwd=tmp_path, TANBR_SERVER=url).stdout
        pair = tanbr("send", "one\ttwo", cwd=tmp_path, TANBR_SERVER=url)
        assert pair.returncode == 2
        assert "the model there writes" in pair.stderr


def test_traffic_is_the_same_for_the_same_seed_and_hides_the_tags(
    tmp_path: Path, url: str, service: FakeService
) -> None:
    sent = []
    for _ in range(2):
        before = len(service.calls)
        done = tanbr(
            "traffic", "--slots", "2", "--requests", "8", "--batch", "4", "--seed", "3", "--rate", "500",
            "--out", "figures.json",
            cwd=tmp_path, TANBR_SERVER=url, TANBR_TOKEN=TOKEN,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        sent.append([call for call in service.calls[before:] if call[0] == "submit"])
    assert sent[0] == sent[1]
    assert [len(call[1]) for call in sent[0]] == [4, 4, 4, 4]
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["requests"] == figures["feedback_accepted"] == 16
    assert all(item is None or item.task is None for item in list(service.given.values())[-16:])
    names = {task.name for task in tiny.TASKS}
    assert not any(name in str(text) for call in sent[0] for text in call[1] for name in names)
