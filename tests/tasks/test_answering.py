"""The posterior repairs answers in another task's words, and nothing else."""

import numpy as np

from tanbr.tasks.answering import LEAST_CHANCE, by_posterior, with_posterior
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Task

SPACE = LabelSpace(
    (
        Task("mood", ("accuracy",), ("bad", "good")),
        Task("grade", ("pearson",), scale=(0.0, 5.0)),
        Task("three", ("accuracy",), ("yes", "maybe", "no")),
        Task("two", ("accuracy",), ("yes", "no")),
    )
)  # columns: bad, good, yes, maybe, no, grade


def best(logits: list[float], posterior: list[float]) -> str:
    adjusted = with_posterior(SPACE, np.array([logits]), np.array([posterior]))
    return SPACE.columns[adjusted[0, : SPACE.classes].argmax()]


def test_an_answer_in_other_words_is_repaired() -> None:
    assert best([0.0, 1.0, 2.0, 0, 0, 9], [1, 0, 0, 0]) == "good"
    assert best([0.0, 1.0, 2.0, 3.0, 0, 9], [0, 0, 0, 1]) == "yes"


def test_a_very_sure_model_outvotes_the_posterior() -> None:
    sure = -np.log(LEAST_CHANCE) + 1
    assert best([0, 0, sure, 0, 0, 0], [1, 0, 0, 0]) == "yes"


def test_an_even_posterior_weighs_labels_by_how_many_tasks_have_them() -> None:
    assert best([0.1, 0.0, 0.0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25]) == "yes"


def test_graded_columns_and_the_input_stay() -> None:
    logits = np.arange(12.0).reshape(2, 6)
    before = logits.copy()
    adjusted = with_posterior(SPACE, logits, np.full((2, 4), 0.25))
    assert np.array_equal(adjusted[:, 5], logits[:, 5])
    assert np.array_equal(logits, before)


def test_columns_keep_their_order_within_a_task() -> None:
    rng = np.random.default_rng(0)
    logits, posteriors = rng.normal(size=(50, 6)), rng.dirichlet(np.ones(4), size=50)
    adjusted = with_posterior(SPACE, logits, posteriors)
    for one, two in ((0, 1), (2, 4)):  # of the same tasks
        assert np.array_equal(logits[:, one] > logits[:, two], adjusted[:, one] > adjusted[:, two])


def test_what_was_written_stays_and_logits_are_weighed() -> None:
    sure = np.eye(4)[:1]
    assert by_posterior(SPACE, ["yes"], sure) == ["yes"]
    assert by_posterior(SPACE, [], np.zeros((0, 4))) == []
    [weighed] = by_posterior(SPACE, [np.array([0.0, 1.0, 2.0, 0, 0, 9])], sure)
    np.testing.assert_array_equal(weighed, with_posterior(SPACE, np.array([[0.0, 1.0, 2.0, 0, 0, 9]]), sure)[0])
