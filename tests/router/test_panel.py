"""Panels: facility location over readings, groups of tasks, assignment, and panels of the router."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.errors import InputError
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.router.panel import Readings, chosen, greedy, rise, task_groups, worth
from tanbr.types import Decision

MIX = np.array([0.4, 0.3, 0.2, 0.1])
MISREAD = np.array([[0.9, 0.1, 0, 0], [0.3, 0.7, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])  # 0 and 1 are taken for each other
OWN = RouterConfig().of_requests((0, 1, 2, 3))


def simplices(count: int) -> st.SearchStrategy[np.ndarray]:
    return st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).dirichlet(np.full(4, 0.5), count))


@pytest.mark.parametrize("models", [1, 2, 3])
def test_greedy_and_exchange_come_near_the_best_panel(models):
    """Never below the promised 1 − 1/e, nor below greedy; the best of all panels is found by trying them."""
    promised = 1 - 1 / np.e
    for seed in range(20):
        bound = np.random.default_rng(seed).random((12, 4))
        best = max(worth(bound[list(rows)], MIX) for rows in itertools.combinations(range(12), models))
        first = worth(bound[greedy(bound, MIX, models)], MIX)
        found = worth(bound[chosen(bound, Readings.of(MIX), models)], MIX)
        assert promised * best <= first <= found <= best + 1e-12
        assert models > 1 or found == best


@settings(max_examples=50, deadline=None)
@given(mixes=simplices(1), confusion=simplices(4), seed=st.integers(0, 1000))
def test_the_worth_of_a_panel_is_that_of_the_best_model_for_each_reading(mixes, confusion, seed):
    """By trying every way to send readings to models."""
    mix = mixes[0]
    bound = np.random.default_rng(seed).random((2, 4))
    readings = Readings.of(mix, confusion)
    best = max(
        sum(mix[v] * confusion[v, u] * bound[models[u], v] for v in range(4) for u in range(4))
        for models in itertools.product(range(2), repeat=4)
    )
    assert worth(readings.bound(bound), readings.mix) == pytest.approx(best, abs=1e-12)
    np.testing.assert_allclose(readings.received(np.ones((1, 4)))[0], mix, atol=1e-12)  # nothing is lost


def test_groups_share_what_is_frequent_out_and_keep_together_what_is_confused():
    assert sorted(np.bincount(task_groups(Readings.of(np.full(4, 0.25)), 2)).tolist()) == [2, 2]
    assert len(set(task_groups(Readings.of(MIX), 4).tolist())) == 4
    alone = task_groups(Readings.of(np.array([0.85, 0.05, 0.05, 0.05])), 2)
    assert (alone[1:] != alone[0]).all()  # a task that most requests have is served alone
    confused = np.eye(4)
    confused[[0, 3], [3, 0]] = confused[[0, 3], [0, 3]] = 0.5  # nothing tells 0 and 3 apart
    labels = task_groups(Readings.of(np.full(4, 0.25), confused), 2)
    assert labels[0] == labels[3]
    assert (rise(0.0), rise(1.0)) == (0.0, 1.0)
    assert 0.6 < rise(0.3) < 0.7  # most of what an expert adds is there at a small weight


def test_what_is_misread_changes_the_panel_and_odd_confusion_is_refused():
    misread = Tanbr(4, 4, config=OWN).ask(MIX, models=3, confusion=MISREAD)
    assert not np.array_equal(misread.blends, Tanbr(4, 4, config=OWN).ask(MIX, models=3).blends)
    for odd in (np.eye(3), np.full((4, 4), 0.5), -np.eye(4), np.full((4, 4), np.nan), "eye"):
        with pytest.raises(InputError):
            Tanbr(4, 4, config=OWN).ask(MIX, models=2, confusion=odd)


def test_requests_go_where_their_task_earns_most():
    blends = np.array([[1.0, 0.0], [0.5, 0.5]])
    panel = Decision(0, np.array([0.9, 0.1]), blends, np.array([[0.8, 0.1], [0.5, 0.6]]))
    assert panel.assign(np.eye(2)).tolist() == [0, 1]
    assert panel.assign([[0.5, 0.5]]).tolist() == [0]  # the forecast decides what the text leaves open
    assert panel.assign([[0.0, 0.0], [np.nan, np.nan]]).tolist() == [1, 1]  # like no task: the most even blend
    unforeseen = Decision(0, np.array([1.0, 0.0]), blends, panel.estimates)
    assert unforeseen.assign([[0.0, 1.0]]).tolist() == [1]
    with pytest.raises(InputError, match=r"posteriors must be \(n, 2\)"):
        panel.assign(np.ones((2, 3)))
