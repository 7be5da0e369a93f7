from pathlib import Path

import pytest

from cli.running import Mistake, tanbr
from tanbr.cli.running import command_line
from tanbr.moe import embedded


def test_the_demo_runs_and_says_where_its_report_is(tmp_path: Path) -> None:
    done = tanbr("demo", "--slots", "20", "--requests", "8", "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tanbr above the best fixed blend" in done.stdout
    assert {file.name for file in (tmp_path / "here").iterdir()} == {"report.html", "demo.json"}


def test_the_command_is_told_without_the_places_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/tanbr", "demo", "--out", "/home/me/two words/", "--seed", "3"])
    assert command_line() == "tanbr demo --out 'two words' --seed 3"


@pytest.mark.parametrize(
    "arguments",
    [
        "demo", "pretrain", "finetune", "survey", "simulate --record stream.jsonl", f"grams {embedded.path()}",
        "reproduce table1", "serve --port 0",
    ],
)  # fmt: skip
def test_a_device_that_is_not_there_is_one_sentence_and_leaves_nothing_behind(
    mistake: Mistake, tmp_path: Path, arguments: str
) -> None:
    said = mistake(*arguments.split(), "--device", "cuda:97")
    assert "device must be one that torch can use here (got 'cuda:97'" in said
    assert not list(tmp_path.iterdir())
