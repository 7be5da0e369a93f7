"""What labelled texts teach: a bounded sample, a calibrated classifier, and the confusion that it expects."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.small import CONFIG, TASKS, history, make
from tanbr.monitor import features
from tanbr.monitor.classifier import Classifier, calibrate
from tanbr.monitor.knowledge import History, Knowledge

PRODUCTS = np.array([[0], [0]])
words = st.lists(st.tuples(st.text("ab", max_size=5), st.integers(0, 1)), max_size=40)


def taught(*names: str) -> Knowledge:
    texts, tasks = history(30)
    chosen = [(text, TASKS.index(task)) for text, task in zip(texts, tasks, strict=True) if task in names]
    numbers = np.array([number for _, number in chosen])
    start = Knowledge.empty(len(TASKS), CONFIG)
    return start.learn(features.read([text for text, _ in chosen]), numbers, CONFIG).fitted(CONFIG)


def test_nothing_learned_classifies_nothing() -> None:
    nothing = Knowledge.empty(3, CONFIG)
    assert not nothing.fitted(CONFIG).classifier.fitted
    assert not nothing.confusion(CONFIG).any()


def test_what_it_learned_tells_tasks_apart() -> None:
    knowledge = taught(*TASKS)
    texts, names = history(10, seed=5)
    posteriors, _ = knowledge.classifier.read(features.read(texts))
    assert [TASKS[i] for i in posteriors.argmax(axis=1)] == names
    assert np.diag(knowledge.confusion(CONFIG)).min() > 0.9


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return taught(TASKS[0], TASKS[2]).classifier  # nothing is known of the second task


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


@settings(max_examples=30)
@given(words)
def test_a_history_is_bounded_and_counts_exactly(rows: list[tuple[str, int]]) -> None:
    """Which texts stay depends neither on their order nor on when equal ones are joined."""
    kept = History.empty()
    for text, task in rows:
        kept = kept.add(features.read([text]), np.array([task]), capacity=6)
    kept = kept.compacted(6)
    listed = list(zip(kept.tasks.tolist(), kept.features.keys.tolist(), kept.counts.tolist(), strict=True))
    keys = features.read([text for text, _ in rows]).keys.tolist()
    seen = [(task, key) for (_, task), key in zip(rows, keys, strict=True)]
    for task in (0, 1):
        smallest = sorted({key for owner, key in seen if owner == task})[:6]
        assert [(task, key, seen.count((task, key))) for key in smallest] == [row for row in listed if row[0] == task]


def drawn(sizes: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw inputs around −1, 0, 1 …, a task each."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return np.random.default_rng(seed).normal(labels[:, None] - 1.0, 1.0), labels


@pytest.mark.parametrize("sizes", [[400, 400], [4000, 200], [3000, 300, 1000]])
def test_posteriors_are_those_under_a_uniform_prior(sizes: list[int]) -> None:
    fitted = calibrate(*drawn(sizes), products=PRODUCTS)
    asked = np.linspace(-2, 2, 9)[:, None]
    densities = np.exp(-0.5 * (asked - (np.arange(len(sizes)) - 1.0)) ** 2)
    truth = densities / densities.sum(axis=1, keepdims=True)
    # Sampling error of a logit's slope and offset from n texts is about 2/√n, of a probability a quarter of that.
    assert np.abs(fitted.posteriors(asked) - truth).max() < 4 * 2 / np.sqrt(min(sizes)) / 4 * 2


def test_an_input_far_away_is_no_surer_than_the_clip() -> None:
    fitted = calibrate(*drawn([50, 50, 50]), products=PRODUCTS)
    assert np.array_equal(fitted.posteriors(np.array([[1e6]])), fitted.posteriors(np.array([[1e3]])))


def test_separable_tasks_and_a_constant_input_are_fine() -> None:
    inputs = np.column_stack([np.repeat([-1.0, 1.0], 10), np.ones(20)])
    posteriors = calibrate(inputs, np.repeat([0, 1], 10), products=PRODUCTS).posteriors(inputs)
    assert (posteriors.argmax(axis=1) == np.repeat([0, 1], 10)).all()
    assert np.isfinite(posteriors).all()
