import json
from pathlib import Path

import numpy as np

from lab.test_standings import outcome, standings
from tanbr.lab.online_report import lay_out, markdown, write
from tanbr.lab.standings import Standings


def test_the_tables_hold_every_method() -> None:
    s = standings()
    titles = [title for title, *_ in lay_out(s)]
    assert len(titles) == 4
    page = markdown(s, command="tanbr simulate")
    assert "`tanbr simulate`" in page
    assert all(page.count(f"| {method} |") >= 2 for method in s.methods)
    assert "| 29, 29 |" in page
    assert "never, never" in page


def test_everything_is_written_without_a_word_of_warning(tmp_path: Path) -> None:
    write(tmp_path, standings(), command="tanbr simulate", facts={"slots": 80})
    names = {
        "simulate.json",
        "results.md",
        *(f"{n}.png" for n in ("reward", "regret", "slots", "mix", "blend", "tasks")),
    }
    assert {file.name for file in tmp_path.iterdir()} == names
    assert json.loads((tmp_path / "simulate.json").read_text())["facts"] == {"slots": 80}


def test_one_slot_of_one_method_in_which_a_task_never_came(tmp_path: Path) -> None:
    """What makes NumPy and matplotlib complain; a warning is an error here."""
    lone = Standings.of([outcome(0, "tanbr", np.array([0.5]))], tasks=("one", "two"), mixes={0: np.array([[1.0, 0.0]])})
    write(tmp_path, lone, command="tanbr simulate", facts={})
    assert (tmp_path / "tasks.png").stat().st_size > 1_000


def test_panels_are_drawn_against_their_memory(tmp_path: Path) -> None:
    runs = [
        outcome(0, name, np.full(30, reward))
        for name, reward in (("best-fixed", 0.5), ("best-fixed@2", 0.6), ("average", 0.4), ("tags", 0.7))
    ]
    four = Standings.of(runs, tasks=("one", "two"), mixes={0: np.tile([0.5, 0.5], (30, 1))})
    assert [four.held(method) for method in four.methods] == [1, 2, 1, 2]  # two experts here
    write(tmp_path, four, command="tanbr simulate --models 1,2", facts={}, memory=lambda count: 10.0 * count)
    assert json.loads((tmp_path / "simulate.json").read_text())["memory_mb"] == {"1": 10.0, "2": 20.0}
    assert (tmp_path / "dial.png").stat().st_size > 1_000
