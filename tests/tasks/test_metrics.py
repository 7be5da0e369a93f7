import numpy as np
import pytest

from tanbr.lab.tasks import tiny
from tanbr.tasks.metrics import LEAST_CHANCE, METRICS, LabelSpace, figure
from tanbr.tasks.rows import Row, Task

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


def test_answers_and_rewards() -> None:
    rows = [Row("sentiment", "x", 1.0), Row("sentiment", "x", 1.0), Row("similarity", ("x", "y"), 5.0)]
    logits = np.zeros((3, len(space.columns)))
    logits[0, space.columns.index("positive")] = 3.0
    logits[1, space.columns.index("duplicate")] = 3.0  # another task's label is a wrong answer
    logits[2, space.columns.index("similarity")] = 0.0  # the middle of the scale: 2.5 off, half the scale
    answers = space.read(rows, logits)
    assert answers.tolist() == [1.0, -1.0, 2.5]
    assert space.rewards(rows, answers).tolist() == [1.0, 0.0, 0.0]
    reward, counts = space.slot_reward(rows, np.array([1.0, 0.0, 0.25]))
    sentiment, similarity = (space.tasks.index(space.task(name)) for name in ("sentiment", "similarity"))
    assert (reward[sentiment], reward[similarity], counts.sum()) == (0.5, 0.25, 3)
    assert np.isnan(reward).sum() == len(space.tasks) - 2


# --- answers weighed by the posterior ---------------------------------------------------------------------------------

FOUR = LabelSpace(
    (
        Task("mood", ("accuracy",), ("bad", "good")),
        Task("grade", ("pearson",), scale=(0.0, 5.0)),
        Task("three", ("accuracy",), ("yes", "maybe", "no")),
        Task("two", ("accuracy",), ("yes", "no")),
    )
)  # columns: bad, good, yes, maybe, no, grade
SURE = -np.log(LEAST_CHANCE) + 1


@pytest.mark.parametrize(
    ("logits", "posterior", "best"),
    [
        ([0.0, 1.0, 2.0, 0, 0, 9], [1, 0, 0, 0], "good"),  # an answer in other words is repaired
        ([0.0, 1.0, 2.0, 3.0, 0, 9], [0, 0, 0, 1], "yes"),
        ([0, 0, SURE, 0, 0, 0], [1, 0, 0, 0], "yes"),  # a very sure model outvotes the posterior
        ([0.1, 0.0, 0.0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25], "yes"),  # a label of two tasks
    ],
)
def test_the_posterior_repairs_answers_in_another_tasks_words(
    logits: list[float], posterior: list[float], best: str
) -> None:
    [weighed] = FOUR.by_posterior([np.array(logits)], np.array([posterior]))
    assert FOUR.columns[np.asarray(weighed)[: FOUR.classes].argmax()] == best
    assert FOUR.by_posterior(["yes"], np.array([posterior])) == ["yes"]  # what was written stays
    assert FOUR.by_posterior([], np.zeros((0, 4))) == []


def test_the_posterior_leaves_graded_columns_and_the_order_within_a_task() -> None:
    rng = np.random.default_rng(0)
    logits, posteriors = rng.normal(size=(50, 6)), rng.dirichlet(np.ones(4), size=50)
    before = logits.copy()
    adjusted = FOUR.with_posterior(logits, posteriors)
    assert np.array_equal(logits, before)
    assert np.array_equal(adjusted[:, 5], logits[:, 5])
    for one, two in ((0, 1), (2, 4)):  # of the same tasks
        assert np.array_equal(logits[:, one] > logits[:, two], adjusted[:, one] > adjusted[:, two])
