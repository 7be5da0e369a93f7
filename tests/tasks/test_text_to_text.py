"""Rows as text, and text as answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tanbr.lab.tasks import glue
from tanbr.tasks.rows import Row
from tanbr.tasks.text_to_text import NO_ANSWER, answer, answers, question, understood

BY_NAME = {task.name: task for task in glue.TASKS}


def test_untagged_texts_are_as_a_client_sends_them() -> None:
    assert question(Row("CoLA", "Cat the sat.", 0.0)) == "Cat the sat."
    assert question(Row("RTE", ("It rains.", "It is wet."), 0.0)) == ("It rains.", "It is wet.")


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (Row("CoLA", "Cat the sat.", 0.0), "cola sentence: Cat the sat."),
        (Row("MNLI", ("It rains.", "It is dry."), 2.0), "mnli premise: It rains. hypothesis: It is dry."),
        (Row("paraphrase", ("a", "b"), 1.0), "paraphrase sentence1: a sentence2: b"),
    ],
)
def test_tagged_texts_name_their_task_as_t5_knows_it(row: Row, text: str) -> None:
    assert question(row, tagged=True) == text


@pytest.mark.parametrize("task", glue.TASKS, ids=lambda task: task.name)
def test_every_label_is_understood(task: glue.Task) -> None:
    for index in range(len(task.labels)):
        row = Row(task.name, "", float(index))
        assert understood(f" {answer(row, task)} ", row, task) == index


@given(st.floats(0, 5))
def test_a_score_is_written_in_steps_of_a_fifth(score: float) -> None:
    row = Row("STS-B", ("", ""), score)
    read = understood(answer(row, BY_NAME["STS-B"]), row, BY_NAME["STS-B"])
    assert abs(read - score) <= 0.1 + 1e-9
    assert answer(Row("STS-B", ("", ""), score), BY_NAME["STS-B"]) in answers(BY_NAME["STS-B"])
    assert 0 <= read <= 5


@pytest.mark.parametrize(
    ("text", "task"),
    [("neutral", "RTE"), ("3.8", "CoLA"), ("", "MNLI"), ("very", "STS-B"), ("nan", "STS-B"), ("7", "STS-B")],
)
def test_what_a_task_does_not_allow_is_no_answer(text: str, task: str) -> None:
    assert understood(text, Row(task, "", 0.0), BY_NAME[task]) == NO_ANSWER
