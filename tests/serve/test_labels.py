import pytest

from tanbr.errors import InputError
from tanbr.serve.labels import label_space
from tanbr.tasks.rows import Task

MOOD, GRADE = Task("mood", ("accuracy",), ("bad", "good")), Task("grade", ("pearson",), scale=(0.0, 5.0))


def test_labels_that_a_task_does_not_have_are_refused() -> None:
    space = label_space((MOOD, GRADE), ("bad", "good", "grade"))
    assert space is not None
    assert space.scales == {"grade": (0.0, 5.0)}
    with pytest.raises(InputError, match=r"the label of mood must be one of bad, good \(got 'fine'\)"):
        space.number_of("mood", "fine")
    with pytest.raises(InputError, match=r"the label of grade must be a number from 0 to 5 \(got 5.5\)"):
        space.number_of("grade", 5.5)


@pytest.mark.parametrize(
    "head", [("bad",), ("bad", "good"), ("grade", "bad", "good"), ("bad", "good", "good", "grade")]
)
def test_a_head_without_these_labels_scores_none(head: tuple[str, ...]) -> None:
    assert label_space((MOOD, GRADE), head) is None
