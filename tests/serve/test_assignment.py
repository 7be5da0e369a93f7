import numpy as np

from tanbr.monitor.classifier import Classifier
from tanbr.monitor.recogniser import Recogniser, Recognition
from tanbr.serve.assignment import Assignment, within
from tanbr.types import Decision

MIX = np.array([0.5, 0.25, 0.25])
PANEL = Decision(0, MIX, np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([[0.9, 0.2, 0.2], [0.1, 0.6, 0.8]]))
ASSIGNMENT = Assignment(PANEL, Recogniser(("a", "b", "c"), MIX, Classifier.empty(3)))


def seen(*posteriors: list[float], novel: tuple[int, ...] = ()) -> Recognition:
    count = len(posteriors)
    familiarity = np.array([-1.0 if row in novel else 1.0 for row in range(count)])
    return Recognition(
        np.zeros(count, np.uint64), np.array(posteriors), familiarity, np.zeros((count, 0)), informed=True
    )


def test_a_request_goes_to_the_model_of_its_task_and_what_is_like_no_task_to_the_most_even() -> None:
    rows = seen([0.9, 0.1, 0.0], [0.0, 0.2, 0.8], [0.9, 0.1, 0.0], novel=(2,))
    assert ASSIGNMENT.places(rows).tolist() == [0, 1, 1]


def test_a_client_that_names_tasks_is_believed() -> None:
    rows = seen([0.9, 0.1, 0.0], [0.9, 0.1, 0.0], novel=(1,))
    assert ASSIGNMENT.places(rows, np.array([0.0, 0.0, 1.0])).tolist() == [1, 1]  # though the text says otherwise
    assert ASSIGNMENT.posteriors(rows, np.array([0.0, 1.0, 1.0])).tolist() == [[0.0, 1.0, 0.0]] * 2
    assert within(rows.posteriors, np.array([0.0, 0.0, 1.0])).tolist() == [[0.0, 0.0, 1.0]] * 2


def test_posteriors_are_weighed_by_the_mix() -> None:
    np.testing.assert_allclose(ASSIGNMENT.posteriors(seen([0.5, 0.5, 0.0])), [[2 / 3, 1 / 3, 0.0]], rtol=1e-15)


def test_without_a_model_the_others_have_its_requests() -> None:
    assert ASSIGNMENT.without(0).places(seen([1.0, 0.0, 0.0])).tolist() == [0]
    assert ASSIGNMENT.without(0).panel.blends.tolist() == [[0.5, 0.5]]


def test_texts_are_read_by_the_recogniser_that_was_taken_along() -> None:
    read = ASSIGNMENT.recognise(["one", "two"])
    assert read.posteriors.tolist() == [MIX.tolist()] * 2  # nothing is known yet
