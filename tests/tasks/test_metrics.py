import numpy as np
import pytest

from tanbr.errors import DataError
from tanbr.lab.tasks import tiny
from tanbr.tasks.metrics import METRICS, LabelSpace, figure
from tanbr.tasks.rows import Row

space = LabelSpace(tiny.TASKS)


@pytest.mark.parametrize(
    ("name", "target", "answer", "value"),
    [
        ("accuracy", [0, 1, 1, 0], [0, 1, 0, 0], 0.75),
        ("f1", [0, 1, 1, 0], [0, 1, 0, 0], 2 / 3),  # precision 1, recall 1/2
        ("f1", [0, 0], [0, -1], 0.0),
        ("matthews", [0, 1, 1, 0], [0, 1, 1, 0], 1.0),
        ("matthews", [0, 1, 1, 0], [1, 0, 0, 1], -1.0),
        ("matthews", [0, 1, 1, 0], [1, 1, 1, 1], 0.0),
        ("matthews", [1, 1], [1, 1], 0.0),
        ("pearson", [1, 2, 3], [2, 4, 6], 1.0),
        ("spearman", [1, 2, 3], [1, 8, 9], 1.0),
        ("pearson", [1, 2, 3], [5, 5, 5], 0.0),
    ],
)
def test_metrics_by_hand(name: str, target: list[float], answer: list[float], value: float) -> None:
    assert METRICS[name](np.array(target, float), np.array(answer, float)) == pytest.approx(value)


def test_a_task_with_two_metrics_gets_their_mean() -> None:
    target, answer = np.array([0.0, 1, 1, 0]), np.array([0.0, 1, 0, 0])
    assert figure(tiny.BY_NAME["paraphrase"], target, answer) == pytest.approx((0.75 + 2 / 3) / 2)


def test_the_head_has_each_label_once_and_a_column_per_graded_task() -> None:
    assert len(set(space.columns)) == len(space.columns)
    assert space.columns.count("entailment") == 1  # shared by two tasks
    assert space.columns[-1] == "similarity"
    assert space.classes == len(space.columns) - 1


def test_answers_and_rewards() -> None:
    rows = [Row("sentiment", "x", 1.0), Row("sentiment", "x", 1.0), Row("similarity", ("x", "y"), 5.0)]
    logits = np.zeros((3, len(space.columns)))
    logits[0, space.columns.index("positive")] = 3.0
    logits[1, space.columns.index("duplicate")] = 3.0  # another task's label is a wrong answer
    logits[2, space.columns.index("similarity")] = 0.0  # the middle of the scale: 2.5 off, half the scale
    answers = space.answers(rows, logits)
    assert answers.tolist() == [1.0, -1.0, 2.5]
    assert space.rewards(rows, answers).tolist() == [1.0, 0.0, 0.0]
    reward, counts = space.slot_reward(rows, np.array([1.0, 0.0, 0.25]))
    sentiment, similarity = (space.tasks.index(space.task(name)) for name in ("sentiment", "similarity"))
    assert reward[sentiment] == 0.5
    assert reward[similarity] == 0.25
    assert counts.sum() == 3
    assert np.isnan(reward).sum() == len(space.tasks) - 2


def test_a_perfect_head_earns_everything() -> None:
    rows = [row for task in tiny.TASKS for row in tiny.generate(task.name, 20, seed=0)]
    logits = np.full((len(rows), len(space.columns)), -50.0)
    for i, row in enumerate(rows):
        share = np.clip(space.target(row), 1e-9, 1 - 1e-9)
        logits[i, space.column(row)] = np.log(share / (1 - share))
    answers = space.answers(rows, logits)
    np.testing.assert_allclose(space.rewards(rows, answers), 1.0, atol=1e-6)


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(DataError, match="unknown task 'poetry'; the model knows acceptability"):
        space.column(Row("poetry", "x", 0.0))
