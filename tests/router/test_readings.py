"""Readings: a panel is worth what requests earn that are read alike and served alike."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.errors import InputError
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.router.panel import ModelByModel, Panel, group_mixes, proportional_blends, task_groups, worth
from tanbr.router.readings import Readings
from tanbr.router.sizes import Sizes
from tanbr.state import read_state
from tanbr.types import Terms

MIX = np.array([0.4, 0.3, 0.2, 0.1])
MISREAD = np.array([[0.9, 0.1, 0, 0], [0.3, 0.7, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])  # 0 and 1 are taken for each other


def simplices(count: int) -> st.SearchStrategy[np.ndarray]:
    return st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).dirichlet(np.full(4, 0.5), count))


@settings(max_examples=50)
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


@pytest.mark.parametrize(
    "config", [RouterConfig(), RouterConfig().of_requests((0, 1, 2, 3))], ids=["plain", "baseline"]
)
@pytest.mark.parametrize("resumed", [False, True])
def test_a_panel_is_learned_by_the_readings_that_it_was_chosen_by(tmp_path, config, resumed):
    """However late, whatever was asked since, and after a restart; with a baseline or without."""
    router, vague = Tanbr(4, 4, seed=0, config=config), 0.6 * np.eye(4) + 0.1
    router.warm_start(np.eye(4), 0.2 + 0.6 * np.eye(4), np.full((4, 4), 50.0))
    panel = router.ask(MIX, models=3, confusion=vague)
    router.ask(MIX)
    router.ask(MIX, models=3)
    if resumed:
        router.save(tmp_path / "router.npz")
        router = Tanbr.load(tmp_path / "router.npz")
    router.tell(panel, np.full((3, 4), 0.5), np.full((3, 4), 8.0))
    router.save(tmp_path / "router.npz")
    _, arrays = read_state(tmp_path / "router.npz")
    expected = group_mixes(panel.estimates, Readings.of(MIX, vague))
    assert not np.allclose(expected, group_mixes(panel.estimates, Readings.of(MIX)))
    np.testing.assert_array_equal(arrays["policy.mixes"], expected)


def test_models_that_learn_one_by_one_learn_by_these_readings_too():
    learned = []

    class Learner(ModelByModel):
        def learn(self, mix, *told):
            learned.append(mix)

    readings, estimates = Readings.of(MIX, MISREAD), np.array([[1.0, 0, 0, 0], [0, 1.0, 1.0, 1.0]])
    panel = Panel(np.eye(4)[:2], estimates, (Terms(0.5), Terms(0.5)))
    Learner().learn_panel(readings, panel, np.full((2, 4), 0.5), np.ones((2, 4)))
    np.testing.assert_array_equal(learned, group_mixes(estimates, readings))
