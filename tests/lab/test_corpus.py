"""One place for --data: GLUE where its folders are, files of one's own elsewhere; parts never meet."""

import numpy as np
import pytest

from tanbr.errors import DataError
from tanbr.lab import corpus
from tanbr.lab.corpus import Dataset
from tanbr.lab.tasks import glue, tiny
from tanbr.monitor.config import MonitorConfig


def test_what_is_held_and_what_is_asked_never_meet() -> None:
    made = corpus.generated()
    assert [task.name for task in made.tasks] == [task.name for task in tiny.TASKS]
    for name, held in made.held.items():
        assert len(held) == len(made.stream[name]) == corpus.GENERATED
        assert not {row.text for row in held} & {row.text for row in made.stream[name]}


def test_a_monitor_may_leave_the_first_rows_alone() -> None:
    """What a survey measures on them with its posteriors would flatter it otherwise."""
    made = corpus.generated()
    few = corpus.Corpus(made.name, made.tasks, held=made.first_held(40), stream=made.stream)
    apart = corpus.Corpus(
        made.name, made.tasks, held={name: rows[10:40] for name, rows in made.held.items()}, stream=made.stream
    )
    texts = [made.stream[task.name][0].text for task in made.tasks]
    left, right = (
        one.taught_monitor(MonitorConfig(), seed=0, after=after).snapshot().recognise(texts).posteriors
        for one, after in ((few, 10), (apart, 0))
    )
    np.testing.assert_array_equal(left, right)


def test_own_rows_are_in_three_parts_that_never_meet(tmp_path) -> None:
    lines = "".join(f"text {n},{n % 2}\n" for n in range(50))
    (tmp_path / "mood.csv").write_text(f"text,label\n{lines}")
    data = Dataset(str(tmp_path))
    train, held = data.divided()
    parts = [{row.text for row in part["mood"]} for part in (train, held, data.dev())]
    assert [len(part) for part in parts] == [32, 8, 10]
    assert len(set.union(*parts)) == 50
    assert len(data.dev(limit=3)["mood"]) == 3
    assert data.name == tmp_path.name


def test_glue_is_known_by_its_folders(tmp_path) -> None:
    (tmp_path / "CoLA").mkdir()
    (tmp_path / "notes.csv").write_text("text,label\n")
    data = Dataset(str(tmp_path))
    assert (data.name, data.tasks) == ("GLUE", glue.TASKS)
    with pytest.raises(DataError, match="cannot read CoLA"):
        data.divided()
