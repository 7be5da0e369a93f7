"""Readings: a panel is worth what requests earn that are read alike and served alike."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tanbr.router.readings import Readings
from tanbr.router.sizes import Sizes

from tanbr.errors import InputError
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.router.panel import group_mixes, proportional_blends, task_groups, worth

MIX = np.array([0.4, 0.3, 0.2, 0.1])
MISREAD = np.array([[0.9, 0.1, 0, 0], [0.3, 0.7, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])  # 0 and 1 are taken for each other


def simplices(count: int) -> st.SearchStrategy[np.ndarray]:
    return st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).dirichlet(np.full(4, 0.5), count))


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


def test_where_nothing_is_misread_readings_are_tasks():
    for readings in (Readings.of(MIX), Readings.of(MIX, np.eye(4)), Readings.of(MIX, np.zeros((4, 4)))):
        np.testing.assert_allclose(readings.mix, MIX)
        np.testing.assert_allclose(readings.tasks, np.eye(4))


def test_a_model_has_the_mix_that_it_receives():
    estimates = np.array([[1.0, 0, 0, 0], [0, 1.0, 1.0, 1.0]])
    mixes = group_mixes(estimates, Readings.of(MIX, MISREAD))
    first = np.array([0.4 * 0.9, 0.3 * 0.3, 0, 0])
    second = MIX - first
    np.testing.assert_allclose(mixes, [first / first.sum(), second / second.sum()])


def test_blends_hold_experts_for_what_strays_in():
    labels = np.array([0, 1, 1, 1])
    blends = proportional_blends(Readings.of(MIX, MISREAD), labels, 2, own=[0, 1, 2, 3], sizes=Sizes(4, 4, 4))
    assert blends[0, 1] == pytest.approx(0.3 * 0.3 / (0.4 * 0.9 + 0.3 * 0.3))


def test_tasks_that_are_taken_for_each_other_share_a_model():
    even = np.full(4, 0.25)
    confused = np.eye(4)
    confused[[0, 3], [3, 0]] = confused[[0, 3], [0, 3]] = 0.5  # nothing tells 0 and 3 apart
    labels = task_groups(Readings.of(even, confused), 2)
    assert labels[0] == labels[3]


def test_a_router_takes_it_into_account_and_refuses_what_is_none():
    router = Tanbr(4, 4, seed=0, config=RouterConfig().of_requests((0, 1, 2, 3)))
    panel = router.ask(MIX, models=3, confusion=MISREAD)
    plain = Tanbr(4, 4, seed=0, config=RouterConfig().of_requests((0, 1, 2, 3))).ask(MIX, models=3)
    assert not np.array_equal(panel.blends, plain.blends)
    for odd in (np.eye(3), np.full((4, 4), 0.5), -np.eye(4), np.full((4, 4), np.nan), "eye"):
        with pytest.raises(InputError):
            router.ask(MIX, models=2, confusion=odd)


def test_what_was_told_of_readings_survives_save_and_load(tmp_path):
    router = Tanbr(4, 4, seed=0, config=RouterConfig().of_requests((0, 1, 2, 3)))
    panel = router.ask(MIX, models=2, confusion=MISREAD)
    router.save(tmp_path / "router.npz")
    twin = Tanbr.load(tmp_path / "router.npz")
    for one in (router, twin):
        one.tell(panel.id, np.full((2, 4), 0.5), np.full((2, 4), 8.0))
    assert router.account == twin.account
    np.testing.assert_array_equal(
        router.ask(MIX, models=2, confusion=MISREAD).blends, twin.ask(MIX, models=2, confusion=MISREAD).blends
    )
