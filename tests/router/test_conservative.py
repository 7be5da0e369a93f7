"""The rule that bounds what exploration may cost."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tanbr.errors import ConfigError, InputError
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.router.conservative import baseline_panel
from tanbr.router.known import Rules
from tanbr.router.panel import Readings
from tanbr.router.simplex import Sizes

K = V = 4
OWN = (2, 0, 1, 3)
MIX = np.array([0.4, 0.3, 0.2, 0.1])
few = settings(max_examples=12)
seeds = st.integers(0, 2**31)
owners = st.sampled_from([(), OWN])


def careful(own=OWN, *, seed=0, **changes):
    config = RouterConfig.model_validate({"default": changes}).of_requests(own)
    return Tanbr(K, V, seed=seed, config=config)


def rules_of(own=OWN, *, active=K):
    return Rules.of(Sizes(K, V, active), RouterConfig().of_requests(own).default)


def straight(mix, own=OWN, models=1, **options):
    """The panel that needs no reward."""
    return baseline_panel(rules_of(own, **options), Readings.of(mix), models)


def test_the_baseline_follows_the_shares_or_is_even():
    np.testing.assert_allclose(straight(MIX).blends, [[0.3, 0.2, 0.4, 0.1]])
    np.testing.assert_allclose(straight(MIX, active=1).blends, [[0.0, 0.0, 1.0, 0.0]])
    np.testing.assert_allclose(straight(MIX, (), 3).blends, 0.25)
    base = straight(MIX, models=2)
    assert set(base.home.tolist()) == {0, 1}
    for task, expert in enumerate(OWN):
        group = base.home == base.home[task]
        assert base.blends[base.home[task], expert] == pytest.approx(MIX[task] / MIX[group].sum())


@few
@given(seeds, owners, st.integers(1, 3))
def test_a_budget_of_0_never_leaves_the_baseline(seed, own, models):
    rng, router = np.random.default_rng(seed), careful(own, budget=0.0)
    for _ in range(8):
        mix = rng.dirichlet(np.ones(V))
        panel, base = router.ask(mix, models=models), straight(mix, own, models)
        np.testing.assert_allclose(panel.blends, base.blends, atol=1e-12)
        assert models == 1 or panel.task_models.tolist() == base.home.tolist()
        router.tell(panel, rng.random((models, V)), rng.integers(1, 60, (models, V)))
    account = router.account
    assert (account.slots, account.explored, account.gain, account.budget) == (8, 0, 0.0, 0.0)


@few
@given(seeds, owners, st.floats(0.001, 0.2))
@example(3326247, OWN, 0.125)  # here an extrapolation expects less than nothing of the baseline: it adds no budget
def test_nothing_is_tried_that_the_balance_does_not_pay_for(seed, own, budget):
    """Rewards are an adversary's: whatever leaves the baseline earns nothing."""
    rng, router = np.random.default_rng(seed), careful(own, seed=seed, budget=budget)
    for _ in range(25):
        mix, before = rng.dirichlet(np.ones(V)), router.account
        decision = router.ask(mix)
        why = router.explain(decision)
        assert why.balance == pytest.approx(before.balance + budget * max(why.baseline, 0.0))
        stays = np.allclose(decision.blends, straight(mix, own).blends, atol=1e-12)
        assert stays or why.least_gain + why.balance >= 0
        router.tell(decision, np.full(V, 0.9 * stays), np.full(V, 20.0))
        after = router.account
        assert after.balance == pytest.approx(after.gain + budget * after.baseline)
        if before.balance < 0 and why.balance < 0:
            assert stays or why.least_gain > 0


def test_what_is_still_to_come_is_charged():
    router, rng = careful(budget=0.02), np.random.default_rng(0)
    for _ in range(30):
        decision = router.ask(rng.dirichlet(np.ones(V)))
        router.tell(decision, np.clip(0.3 + 0.5 * decision.blend, 0, 1), np.full(V, 20.0))
    balances = [router.explain(router.ask(MIX)).balance for _ in range(4)]
    assert balances == sorted(balances, reverse=True)


@pytest.mark.parametrize("own", [(), OWN])
@pytest.mark.parametrize("models", [1, 2])
def test_it_starts_at_the_baseline_and_a_better_panel_is_found(models, own):
    """One expert is better for all tasks than their own, and than all alike."""
    router, rng, base = careful(own), np.random.default_rng(0), straight(MIX, own, models)
    for slot in range(80):
        panel = router.ask(MIX, models=models)
        stays = np.array_equal(panel.blends, base.blends)
        assert stays or slot > 0
        assert stays or panel.why.least_gain >= -panel.why.balance - 1e-12
        noise = 0.02 * rng.normal(size=(models, V))
        rewards = 0.3 + 0.5 * np.repeat(panel.blends[:, :1], V, axis=1) + noise
        router.tell(panel, np.clip(rewards, 0, 1), np.full((models, V), 40.0))
    account = router.account
    assert account.slots == 80
    assert account.explored > 0
    assert account.gain > 0
    assert 0 < account.swaps < 40
    served = panel.blends[panel.task_models]
    assert MIX @ served[:, 0] > MIX @ base.blends[base.home][:, 0] + 0.1


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"budget": -0.1}, ConfigError, "budget"),
        ({"budget": 1.5}, ConfigError, "budget"),
        ({"baseline": "best"}, ConfigError, "baseline"),
        ({"baseline": "proportional"}, InputError, "needs own_experts"),
        ({"own_experts": OWN}, InputError, "no other baseline takes them"),
        ({"baseline": "proportional", "own_experts": (0, 1)}, InputError, "own_experts must name one"),
        ({"baseline": "proportional", "own_experts": (0, 1, 2, K)}, InputError, "own_experts must name one"),
    ],
)
def test_what_makes_no_baseline_is_refused(changes, error, says):
    with pytest.raises(error, match=says) as raised:
        Tanbr(K, V, config={"default": changes})
    assert "\n" not in str(raised.value)
    assert Tanbr(K, V).account is Tanbr(K, V, mode="paper").account is None
