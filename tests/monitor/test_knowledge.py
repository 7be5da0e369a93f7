import numpy as np
import pytest

from monitor.small import CONFIG, TASKS, history
from tanbr.monitor import features
from tanbr.monitor.knowledge import Knowledge


def taught(*parts: slice) -> Knowledge:
    texts, names = history(30)
    numbers = np.array([TASKS.index(name) for name in names])
    knowledge = Knowledge(len(TASKS), CONFIG)
    for part in parts:
        knowledge.learn(features.read(texts[part]), numbers[part])
    return knowledge


def test_nothing_learned_classifies_nothing() -> None:
    assert Knowledge(3, CONFIG).classifier is None
    assert not Knowledge(3, CONFIG).confusion.any()


def test_two_that_learned_apart_merge_into_one_that_learned_everything() -> None:
    whole, apart = taught(slice(0, 90)), taught(slice(0, 45))
    apart.merge(taught(slice(45, 90)))
    one, two = whole.arrays(), apart.arrays()
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)


def test_what_it_learned_tells_tasks_apart_and_comes_back() -> None:
    knowledge = taught(slice(None))
    assert knowledge.classifier is not None
    texts, names = history(10, seed=5)
    posteriors, _ = knowledge.classifier.read(features.read(texts))
    assert [TASKS[i] for i in posteriors.argmax(axis=1)] == names
    assert np.diag(knowledge.confusion).min() > 0.9
    again = Knowledge(len(TASKS), CONFIG)
    again.restore(knowledge.arrays())
    assert again.classifier is not None
    np.testing.assert_array_equal(again.classifier.read(features.read(texts))[0], posteriors)


def test_counts_below_0_are_refused() -> None:
    arrays = taught(slice(None)).arrays()
    with pytest.raises(ValueError, match="below 0"):
        Knowledge(len(TASKS), CONFIG).restore(arrays | {"learned": -arrays["learned"]})
