import numpy as np
import pytest

from tanbr.errors import DataError
from tanbr.lab import corpus
from tanbr.lab.tasks import tiny
from tanbr.monitor.config import MonitorConfig


def test_what_is_held_and_what_is_asked_never_meet() -> None:
    made = corpus.generated()
    assert [task.name for task in made.tasks] == [task.name for task in tiny.TASKS]
    for name, held in made.held.items():
        assert len(held) == len(made.stream[name]) == corpus.GENERATED
        assert not {row.text for row in held} & {row.text for row in made.stream[name]}


def test_the_first_held_rows_of_every_task() -> None:
    made = corpus.generated()
    assert {len(rows) for rows in made.first_held(5).values()} == {5}
    with pytest.raises(DataError, match=r"has only 600 held rows; ask for at most as many \(--rows\)"):
        made.first_held(601)


def test_a_taught_monitor_knows_the_tasks() -> None:
    made = corpus.generated()
    recogniser = made.taught_monitor(MonitorConfig(), seed=0).snapshot()
    row = made.stream["sentiment"][0]
    assert made.tasks[recogniser.recognise([row.text]).posteriors[0].argmax()].name == "sentiment"


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
