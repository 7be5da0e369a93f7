import itertools

import numpy as np
import pytest
from tanbr.router.readings import Readings
from tanbr.router.sizes import Sizes

from tanbr.errors import InputError
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.router.panel import (
    Candidates,
    chosen,
    exchanged,
    greedy,
    group_mixes,
    panel_of,
    proportional_blends,
    task_groups,
    worth,
)
from tanbr.types import PanelDecision

MIX = np.array([0.4, 0.3, 0.2, 0.1])


def candidates(bound):
    return Candidates.of(np.eye(len(bound)), np.asarray(bound, dtype=float), np.zeros((len(bound), len(bound[0]))))


@pytest.mark.parametrize("models", [1, 2, 3])
def test_greedy_and_exchange_come_near_the_best_panel(models):
    """Never below the promised 1 − 1/e, nor below greedy; the best of all panels is found by trying them."""
    promised = 1 - 1 / np.e
    for seed in range(20):
        bound = np.random.default_rng(seed).random((12, 4))
        best = max(worth(bound[list(rows)], MIX) for rows in itertools.combinations(range(12), models))
        first = worth(bound[greedy(bound, MIX, models)], MIX)
        found = worth(bound[chosen(candidates(bound), Readings.of(MIX), models)], MIX)
        assert promised * best <= first <= found <= best + 1e-12


def test_exchange_mends_what_greedy_gets_wrong():
    """The all-rounder comes first, and then neither specialist finds its partner."""
    bound = np.array([[0.6, 0.6], [1.0, 0.0], [0.0, 1.0]])
    mix = np.array([0.5, 0.5])
    rows = greedy(bound, mix, 2)
    assert 0 in rows
    assert sorted(exchanged(bound, mix, rows).tolist()) == [1, 2]


def test_the_start_stays_where_nothing_is_better():
    bound = np.full((5, 4), 0.5)
    assert chosen(candidates(bound), Readings.of(MIX), 2, start=np.array([3, 4])).tolist() == [3, 4]
    bound[0] = 0.9
    assert 0 in chosen(candidates(bound), Readings.of(MIX), 2, start=np.array([3, 4]))


def test_each_model_has_the_mix_of_the_tasks_it_serves():
    mixes = group_mixes(np.array([[0.9, 0.1, 0.9, 0.1], [0.1, 0.9, 0.1, 0.9], [0, 0, 0, 0]]), Readings.of(MIX))
    np.testing.assert_allclose(mixes, [[2 / 3, 0, 1 / 3, 0], [0, 0.75, 0, 0.25], MIX])


def test_groups_part_what_disturbs_each_other():
    even = Readings.of(np.full(4, 0.25))
    harm = np.zeros((4, 4))
    harm[0, 1] = harm[1, 0] = harm[2, 3] = harm[3, 2] = 0.5
    labels = task_groups(even, 2, interference=harm)
    assert labels[0] != labels[1]
    assert labels[2] != labels[3]
    assert sorted(np.bincount(task_groups(even, 2)).tolist()) == [2, 2]
    assert len(set(task_groups(Readings.of(MIX), 4).tolist())) == 4
    alone = task_groups(
        Readings.of(np.array([0.85, 0.05, 0.05, 0.05])), 2
    )  # a task that most requests have is served alone
    assert (alone[1:] != alone[0]).all()


def test_proportional_blends_share_by_the_mix_inside_a_group():
    blends = proportional_blends(Readings.of(MIX), np.array([0, 1, 0, 1]), 3, own=[2, 0, 1, 1], sizes=Sizes(3, 4, 3))
    np.testing.assert_allclose(blends, [[0, 1 / 3, 2 / 3], [0.75, 0.25, 0], [0.3, 0.3, 0.4]])
    lone = Readings.of(np.eye(4)[0])
    unforeseen = proportional_blends(lone, np.array([0, 1, 1, 1]), 2, own=[0, 1, 2, 2], sizes=Sizes(3, 4, 3))
    np.testing.assert_allclose(unforeseen, [[1, 0, 0], [0, 1 / 3, 2 / 3]])


def test_a_panel_says_of_each_blend_why():
    found = candidates([[0.9, 0.1, 0.2, 0.3], [0.2, 0.8, 0.7, 0.6]])
    panel = panel_of(found, np.array([0, 1]), Readings.of(MIX))
    assert [terms.mean for terms in panel.terms] == pytest.approx([0.9, (0.3 * 0.8 + 0.2 * 0.7 + 0.1 * 0.6) / 0.6])
    assert all(terms.candidates == 2 for terms in panel.terms)


def test_before_any_reward_the_panel_is_groups_with_shares_by_the_mix():
    config = RouterConfig().of_requests((0, 1, 2, 3))
    panel = Tanbr(4, 4, config=config).ask([0.7, 0.1, 0.1, 0.1], models=2)
    big, rest = np.argsort(-panel.blends[:, 0])
    assert panel.blends[big, 0] > 0.8
    assert panel.blends[rest, 1:].min() > 0.15
    assert panel.task_models.tolist() == [big, rest, rest, rest]


def test_a_known_interference_parts_the_tasks():
    harm = np.zeros((4, 4))
    harm[0, 1] = harm[1, 0] = harm[2, 3] = harm[3, 2] = 0.5
    config = RouterConfig.model_validate({"default": {"interference": harm.tolist()}}).of_requests((0, 1, 2, 3))
    models = Tanbr(4, 4, config=config).ask(np.full(4, 0.25), models=2).task_models
    assert models[0] != models[1]
    assert models[2] != models[3]
    with pytest.raises(InputError, match="4 by 4 numbers"):
        Tanbr(4, 4, config={"default": {"interference": [[0.0]]}})


@pytest.mark.parametrize("mode", ["default", "paper"])
def test_two_models_learn_what_one_cannot_be(mode):
    """Two tasks whose best blends are opposite: a panel of two earns both, a single blend half."""

    def reward(blends):
        return np.clip(np.stack([1.1 * blends[:, 0], 1.1 * blends[:, 1]], axis=1), 0.0, 1.0)

    settings = {"paper": {"rho": 0.9, "loss": "mean", "learning_rate": 0.01, "representative": "proportional"}}
    earned = {}
    for models in (1, 2):
        router = Tanbr(2, 2, mode=mode, seed=0, config=settings)
        for _ in range(60):
            panel = router.ask([0.5, 0.5], models=models)
            router.tell(panel, reward(panel.blends))
        served = panel.assign(np.eye(2))
        earned[models] = reward(panel.blends)[served, [0, 1]].mean()
    assert earned[1] <= 0.55 + 1e-9
    assert earned[2] > 0.75


def test_requests_go_where_their_task_earns_most():
    blends = np.array([[1.0, 0.0], [0.5, 0.5]])
    panel = PanelDecision(0, np.array([0.9, 0.1]), blends, np.array([[0.8, 0.1], [0.5, 0.6]]))
    assert panel.assign(np.eye(2)).tolist() == [0, 1]
    assert panel.assign([[0.5, 0.5]]).tolist() == [0]  # the forecast decides what the text leaves open
    assert panel.assign([[0.5, 0.5]], prior=[0.9, 0.1]).tolist() == [
        1
    ]  # counted already: .45·(.8 + .1) < .45·(.5 + .6)
    assert panel.assign([[0.0, 0.0], [np.nan, np.nan]]).tolist() == [1, 1]  # like no task: the most even blend
    unforeseen = PanelDecision(0, np.array([1.0, 0.0]), blends, panel.estimates)
    assert unforeseen.assign([[0.0, 1.0]]).tolist() == [1]
    with pytest.raises(InputError, match=r"posteriors must be \(n, 2\)"):
        panel.assign(np.ones((2, 3)))


def test_a_panel_that_collapses_is_no_error():
    router = Tanbr(3, 2, mode="paper")
    panel = router.ask([0.5, 0.5], models=3)  # one leaf, three times
    assert (panel.blends == panel.blends[0]).all()
    assert set(panel.assign(np.eye(2)).tolist()) == {0}
    router.tell(panel, [[0.5, 0.5], [np.nan, np.nan], [np.nan, np.nan]])
    assert router.open == ()


def test_the_next_panel_looks_elsewhere_while_rewards_are_to_come():
    router = Tanbr(4, 2, seed=0)
    for _ in range(6):
        router.tell(router.ask([0.5, 0.5]), [0.5, 0.4])
    panels = [router.ask([0.5, 0.5], models=2) for _ in range(3)]
    assert len({panel.blends.tobytes() for panel in panels}) > 1


def test_history_remembers_panels_with_their_rewards():
    router = Tanbr(3, 2)
    panel = router.ask([0.5, 0.5], models=2)
    router.tell(panel.id, [[0.5, np.nan], [0.2, 0.9]], [[3, 0], [1, 2]])
    told = router.history[-1]
    assert told.decision is panel
    assert told.counts.tolist() == [[3, 0], [1, 2]]
    assert router.explain(panel) == told.terms
