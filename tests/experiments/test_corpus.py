import pytest

from tanbr.errors import DataError
from tanbr.experiments import corpus
from tanbr.monitor.config import MonitorConfig
from tanbr.tasks import tiny


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
