"""Panels are held to the budget, too."""

import numpy as np
import pytest

from tanbr.router import Tanbr
from tanbr.router.careful_panel import baseline_panel, entries
from tanbr.router.config import RouterConfig
from tanbr.router.gp_tree import GpTree
from tanbr.router.readings import Readings
from tanbr.router.sizes import Sizes

K = V = 4
OWN = (2, 0, 1, 3)
MIX = np.array([0.4, 0.3, 0.2, 0.1])


def careful(own=OWN, *, seed=0, **changes):
    small = {"pool": 60, "room": 0, **changes}
    return Tanbr(K, V, seed=seed, config=RouterConfig.model_validate({"default": small}).of_requests(own))


def straight(router, mix, models=2):
    return baseline_panel(router.config.default, Sizes(K, V, K), Readings.of(mix), models)


def test_the_baseline_panel_parts_the_tasks_and_shares_by_the_mix():
    base = straight(careful(), MIX)
    assert set(base.home.tolist()) == {0, 1}
    for task, expert in enumerate(OWN):
        group = base.home == base.home[task]
        assert base.blends[base.home[task], expert] == pytest.approx(MIX[task] / MIX[group].sum())
    even = straight(careful(()), MIX, 3)
    np.testing.assert_allclose(even.blends, 0.25)


@pytest.mark.parametrize("own", [OWN, ()])
@pytest.mark.parametrize("models", [2, 3])
def test_a_budget_of_0_never_leaves_the_baseline_panel(own, models):
    rng, router = np.random.default_rng(0), careful(own, budget=0.0)
    for _ in range(8):
        mix = rng.dirichlet(np.ones(V))
        panel = router.ask(mix, models=models)
        base = straight(router, mix, models)
        np.testing.assert_allclose(panel.blends, base.blends)
        assert panel.task_models.tolist() == base.home.tolist()
        router.tell(panel, rng.random((models, V)), np.full((models, V), 30.0))
    account = router.account
    assert (account.slots, account.explored, account.gain, account.budget) == (8, 0, 0.0, 0.0)


def test_a_panel_starts_at_the_baseline_and_a_better_one_is_found():
    router, rng = careful(), np.random.default_rng(0)

    def reward(blends):  # one expert is better for all tasks than their own
        return 0.3 + 0.5 * np.repeat(blends[:, :1], V, axis=1)

    first = router.ask(MIX, models=2)
    np.testing.assert_allclose(first.blends, straight(router, MIX).blends)
    router.tell(first, reward(first.blends), np.full((2, V), 40.0))
    for _ in range(40):
        panel = router.ask(MIX, models=2)
        why = router.explain(panel)
        if not np.array_equal(panel.blends, straight(router, MIX).blends):
            assert why[0].least_gain >= -why[0].balance - 1e-12
        noise = 0.02 * rng.normal(size=(2, V))
        router.tell(panel, np.clip(reward(panel.blends) + noise, 0, 1), np.full((2, V), 40.0))
    account = router.account
    assert account.slots == 41
    assert account.explored > 0
    assert account.gain > 0
    assert account.balance == pytest.approx(account.gain + account.budget)
    served, base = panel.blends[panel.task_models], straight(router, MIX)
    assert MIX @ served[:, 0] > MIX @ base.blends[base.home][:, 0]


def test_a_panel_that_is_still_open_stays_charged():
    router, rng = careful(budget=0.05), np.random.default_rng(0)
    for _ in range(12):
        panel = router.ask(MIX, models=2)
        router.tell(
            panel, np.clip(0.3 + 0.5 * panel.blends[:, :V] + 0 * rng.random((2, V)), 0, 1), np.full((2, V), 20.0)
        )
    balances = [router.explain(router.ask(MIX, models=2))[0].balance for _ in range(3)]
    assert balances == sorted(balances, reverse=True)


def test_a_panels_entries_add_up_to_its_gain():
    router, rng = careful(budget=1.0), np.random.default_rng(0)
    policy, base = GpTree(Sizes(K, V, K), config=router.config.default, rng=rng), straight(router, MIX)
    for _ in range(6):
        panel = policy.choose_panel(Readings.of(MIX), 2, [])
        policy.learn_panel(Readings.of(MIX), panel, rng.random((2, V)), np.full((2, V), 50.0))
    panel = policy.choose_panel(Readings.of(MIX), 2, [])
    goes = panel.estimates.argmax(axis=0)
    rows = entries(policy, Readings.of(MIX), panel)
    np.testing.assert_allclose(sum(row[0] for row in rows), MIX)
    mean = policy.posterior.mean_at
    gain = sum(float(mix @ (mean(x[None]) - mean(b[None]))[0]) for mix, x, b in rows)
    own = mean(panel.blends)[goes, range(V)] - mean(base.blends)[base.home, range(V)]
    assert gain == pytest.approx(float(MIX @ own))


def test_accounts_of_panels_survive_save_and_load(tmp_path):
    router, rng = careful(), np.random.default_rng(0)
    for models in (2, 1, 3, 2):
        panel = router.ask(MIX, models=models)
        router.tell(panel, rng.random((models, V)))
    router.save(tmp_path / "state.npz")
    other = Tanbr.load(tmp_path / "state.npz")
    assert other.account == router.account
    np.testing.assert_array_equal(other.ask(MIX, models=2).blends, router.ask(MIX, models=2).blends)
