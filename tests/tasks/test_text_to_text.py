"""Rows as text, text as answers, and how near a written answer comes to the one that was wanted."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tanbr.lab.tasks import glue
from tanbr.tasks.metrics import LabelSpace, figure
from tanbr.tasks.rows import Row, Task, exact_match, rouge_l
from tanbr.tasks.text_to_text import NO_ANSWER, answer, answers, question, understood

WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=6)
BY_NAME = {task.name: task for task in glue.TASKS}


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
    assert question(row) == row.text  # as a client sends it


@pytest.mark.parametrize("task", glue.TASKS, ids=lambda task: task.name)
def test_every_label_is_understood(task: glue.Task) -> None:
    for index in range(len(task.labels)):
        row = Row(task.name, "", float(index))
        assert understood(f" {answer(row, task)} ", row, task) == index


@given(st.floats(0, 5))
def test_a_score_is_written_in_steps_of_a_fifth(score: float) -> None:
    row, task = Row("STS-B", ("", ""), score), BY_NAME["STS-B"]
    written = answer(row, task)
    assert written in answers(task)
    assert abs(understood(written, row, task) - score) <= 0.1 + 1e-9


@pytest.mark.parametrize(
    ("text", "task"),
    [("neutral", "RTE"), ("3.8", "CoLA"), ("", "MNLI"), ("very", "STS-B"), ("nan", "STS-B"), ("7", "STS-B")],
)
def test_what_a_task_does_not_allow_is_no_answer(text: str, task: str) -> None:
    assert understood(text, Row(task, "", 0.0), BY_NAME[task]) == NO_ANSWER


@given(one=WORDS, other=WORDS)
def test_rouge_is_the_f_score_of_the_longest_common_subsequence(one: list[str], other: list[str]) -> None:
    """Its length is found by trying all subsequences of both."""
    ways = [{some for size in range(7) for some in combinations(side, size)} for side in (one, other)]
    longest = max(len(some) for some in ways[0] & ways[1])
    expected = 2 * longest / (len(one) + len(other)) if one and other else float(one == other)
    assert rouge_l(" ".join(one), " ".join(other)) == rouge_l(" ".join(other), " ".join(one)) == expected


@pytest.mark.parametrize(
    ("text", "wanted", "exact", "rouge"),
    [
        (" the  cat sat", "the cat sat", 1.0, 1.0),
        ("The cat, sat.", "the cat sat", 0.0, 1.0),
        ("a dog sat", "the cat sat", 0.0, 1 / 3),
        ("", "", 1.0, 1.0),
    ],
)
def test_scores(text: str, wanted: str, exact: float, rouge: float) -> None:
    assert (exact_match(text, wanted), rouge_l(text, wanted)) == (exact, pytest.approx(rouge, abs=1e-15))
    task = Task("summary", ("exact match", "rouge-l"), (wanted,))
    assert understood(text, Row("summary", "x", 0.0), task) == pytest.approx((exact + rouge) / 2, abs=1e-15)


def test_a_written_answer_earns_how_near_it_comes() -> None:
    task = Task("summary", ("rouge-l",), ("the cat sat", "a dog ran"))
    space, rows = LabelSpace((task,)), [Row("summary", "x", 0.0), Row("summary", "y", 1.0)]
    read = space.read(rows, ["a cat sat", "a dog ran"])
    np.testing.assert_allclose(read, [2 / 3, 1.0], rtol=1e-15)
    np.testing.assert_array_equal(space.rewards(rows, read), read)
    assert figure(task, np.array([0.0, 1.0]), read) == pytest.approx(5 / 6, abs=1e-15)
    logits = np.array([[0.0, 9.0], [0.0, 9.0]])  # a classifier's answer is the text of a label
    np.testing.assert_array_equal(space.read(rows, list(logits)), [0.0, 1.0])
