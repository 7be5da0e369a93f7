import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from cli.running import Mistake, tanbr
from serve.web.fake import FakeService
from serve.web.live import TOKEN
from tanbr.cli import driving
from tanbr.lab.drive import Drive
from tanbr.lab.tasks import tiny
from tanbr.serve.web.client import Client


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


def test_its_panels_fit_a_terminal_of_80_columns(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(url, token=TOKEN) as client:
        one = Drive(np.full(3, 1 / 3), np.array([1.0, 0.0]), 0.5, 2, client.state())
    written = io.StringIO()
    terminal = Console(file=written, width=80, highlight=False)
    monkeypatch.setattr(driving, "console", terminal)
    display = driving.TrafficDisplay(slots=2, tasks=list(one.state["tasks"]))
    terminal.print(display.panels([one]))
    shown = written.getvalue()
    assert max(map(len, shown.splitlines())) <= 80
    for word in ("likeness", "expert 4", "texts a second", "merge version"):
        assert word in shown
    assert "…" not in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("traffic", "--traffic", "wild"), "unknown kind of traffic 'wild'"),
        (("traffic", "--data", "nowhere"), "no GLUE folder at nowhere"),
        (("traffic", "--slots", "1"), "cannot reach http://127.0.0.1:9"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_exit_code_2(mistake: Mistake, arguments, says) -> None:
    assert says in mistake(*arguments)
