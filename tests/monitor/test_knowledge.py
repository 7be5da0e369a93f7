"""What labelled texts teach: a bounded sample, and posteriors that are calibrated."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.monitor import features
from tanbr.monitor.classifier import calibrate
from tanbr.monitor.knowledge import History

words = st.lists(st.tuples(st.text("ab", max_size=5), st.integers(0, 1)), max_size=40)


@settings(max_examples=30)
@given(words)
def test_a_history_is_bounded_and_counts_exactly(rows: list[tuple[str, int]]) -> None:
    """Which texts stay depends neither on their order nor on when equal ones are joined."""
    kept = History.empty()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tanbr.monitor.knowledge.HISTORY", 6)
        for text, task in rows:
            kept = kept.add(features.read([text]), np.array([task]))
        kept = kept.compacted()
    listed = list(zip(kept.tasks.tolist(), kept.features.keys.tolist(), kept.counts.tolist(), strict=True))
    keys = features.read([text for text, _ in rows]).keys.tolist()
    seen = [(task, key) for (_, task), key in zip(rows, keys, strict=True)]
    for task in (0, 1):
        smallest = sorted({key for owner, key in seen if owner == task})[:6]
        assert [(task, key, seen.count((task, key))) for key in smallest] == [row for row in listed if row[0] == task]


@pytest.fixture
def one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply the first input alone, with itself."""
    monkeypatch.setattr("tanbr.monitor.classifier.PRODUCTS", np.array([[0], [0]]))


def drawn(sizes: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw inputs around −1, 0, 1 …, a task each."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return np.random.default_rng(seed).normal(labels[:, None] - 1.0, 1.0), labels


@pytest.mark.usefixtures("one_product")
@pytest.mark.parametrize("sizes", [[400, 400], [4000, 200], [3000, 300, 1000]])
def test_posteriors_are_those_under_a_uniform_prior(sizes: list[int]) -> None:
    fitted = calibrate(*drawn(sizes))
    asked = np.linspace(-2, 2, 9)[:, None]
    densities = np.exp(-0.5 * (asked - (np.arange(len(sizes)) - 1.0)) ** 2)
    truth = densities / densities.sum(axis=1, keepdims=True)
    # Sampling error of a logit's slope and offset from n texts is about 2/√n, of a probability a quarter of that.
    assert np.abs(fitted.posteriors(asked) - truth).max() < 4 * 2 / np.sqrt(min(sizes)) / 4 * 2
