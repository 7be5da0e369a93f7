import numpy as np
import pytest

from monitor.small import CONFIG, TASKS, history, make
from tanbr.monitor import features
from tanbr.monitor.classifier import Classifier
from tanbr.monitor.knowledge import Knowledge

LEARNED = np.array([20, 0, 20])  # nothing is known of the second task
TABLE = (CONFIG.sketch_rows, CONFIG.sketch_width)


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    texts, names = history(20)
    chosen = [i for i, name in enumerate(names) if name != TASKS[1]]
    knowledge = Knowledge(len(TASKS), CONFIG)
    knowledge.learn(features.read([texts[i] for i in chosen]), np.array([TASKS.index(names[i]) for i in chosen]))
    assert knowledge.classifier is not None
    return knowledge.classifier


def test_a_task_without_history_has_no_posterior(classifier: Classifier) -> None:
    posteriors, _ = classifier.read(features.read(make(TASKS[0], 5, seed=9)))
    assert (posteriors[:, 1] == 0).all()
    np.testing.assert_allclose(posteriors.sum(axis=1), 1, atol=len(TASKS) * np.finfo(np.float32).eps)
    assert (posteriors.argmax(axis=1) == 0).all()


def test_a_tasks_own_texts_are_more_familiar_than_strange_ones(classifier: Classifier) -> None:
    own = classifier.read(features.read(make(TASKS[0], 20, seed=9)))[1]
    strange = classifier.read(features.read(["zq xw vk " * 5] * 20))[1]
    assert np.median(own) > np.median(strange)
    assert (strange < 0).all()


def test_its_arrays_bring_it_back_and_others_are_refused(classifier: Classifier) -> None:
    arrays, texts = classifier.arrays(), features.read(make(TASKS[2], 5, seed=3))
    again = Classifier.restored(arrays, tasks=3, learned=LEARNED, table=TABLE)
    assert again is not None
    np.testing.assert_array_equal(again.read(texts)[0], classifier.read(texts)[0])
    assert Classifier.restored(Classifier.absent(), tasks=3, learned=LEARNED, table=TABLE) is None
    with pytest.raises(ValueError, match="of other tasks"):
        Classifier.restored(arrays, tasks=2, learned=LEARNED, table=TABLE)
    with pytest.raises(ValueError, match="not of one piece"):
        Classifier.restored(arrays | {"bias": np.zeros(7)}, tasks=3, learned=LEARNED, table=TABLE)
