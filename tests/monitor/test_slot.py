"""A slot's sample does not depend on order; EM finds the mix behind calibrated posteriors, where votes do not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.monitor.slot import SlotSample, prevalence, unknown_share

CONFUSION = np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.1, 0.1, 0.8]])  # P(signal | task)
LIKELIHOOD = CONFUSION / CONFUSION.sum(axis=0)  # posterior under a uniform prior, by signal


def draw(mix: list[float], requests: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    tasks = rng.choice(3, size=requests, p=mix)
    signals = np.array([rng.choice(3, p=CONFUSION[task]) for task in tasks])
    return LIKELIHOOD.T[signals], np.bincount(tasks, minlength=3) / requests


def estimate(posteriors: np.ndarray) -> np.ndarray:
    return prevalence(posteriors, np.ones(len(posteriors))).mix


def test_em_is_right_where_votes_are_biased() -> None:
    posteriors, truth = draw([0.1, 0.8, 0.1], 4000, seed=0)
    votes = np.bincount(posteriors.argmax(axis=1), minlength=3) / len(posteriors)
    assert np.abs(estimate(posteriors) - truth).sum() < 0.1
    assert np.abs(votes - truth).sum() > 0.3


def test_a_few_novel_requests_are_no_news_and_many_are() -> None:
    def judge(novel: int, requests: int) -> tuple[float, bool]:
        return unknown_share((np.arange(requests) < novel).astype(float), np.ones(requests))

    assert judge(0, 64) == (0.0, False)
    assert judge(2, 64) == (0.0, False)
    share, alarm = judge(20, 64)
    assert share == pytest.approx(20 / 64, abs=0.02)
    assert alarm
    assert judge(8, 100)[0] > 0
    assert not judge(8, 100)[1]
    assert unknown_share(np.zeros(0), np.zeros(0)) == (0.0, False)


def filled(keys: list[int]) -> SlotSample:
    slot = SlotSample.empty(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tanbr.monitor.slot.SAMPLE", 8)
        for key in keys:
            posterior = np.array([[key / 100, 1 - key / 100]])
            slot = slot.add(np.array([key], dtype=np.uint64), posterior, np.array([key % 2 == 0]))
        return slot.compacted()


@settings(max_examples=30)
@given(st.lists(st.integers(0, 99), max_size=60).flatmap(lambda keys: st.tuples(st.just(keys), st.permutations(keys))))
def test_the_order_of_requests_does_not_matter(arranged: tuple[list[int], list[int]]) -> None:
    one, two = (filled(keys) for keys in arranged)
    for mine, theirs in zip(one.read(), two.read(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-12)
    assert one.requests == two.requests == len(arranged[0])
