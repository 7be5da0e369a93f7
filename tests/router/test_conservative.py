"""The rule that bounds what exploration may cost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tanbr.errors import ConfigError, InputError
from tanbr.router import Tanbr, conservative, gp
from tanbr.router.config import RouterConfig
from tanbr.router.conservative import baseline_panel, entered, settled, total_gain
from tanbr.router.gp import LEAST
from tanbr.router.known import Rules
from tanbr.router.panel import Readings, rise
from tanbr.router.simplex import Sizes
from tanbr.types import Decision

K, V = 4, 3
OWN = (2, 0, 1)
few = settings(max_examples=12)
seeds = st.integers(0, 2**31)
baselines = st.sampled_from([(), OWN])


def careful(own=OWN, *, seed=0, **changes):
    return Tanbr(K, V, seed=seed, config=RouterConfig.model_validate({"default": changes}).of_requests(own))


def rules_of(own=OWN, *, active=K, **changes):
    return Rules.of(Sizes(K, V, active), RouterConfig.model_validate({"default": changes}).of_requests(own).default)


def shares(mix, own=OWN, **options):
    return baseline_panel(rules_of(own, **options), Readings.of(mix), 1).blends[0]


def test_the_baseline_follows_the_shares_or_is_even():
    mix = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(shares(mix), [0.3, 0.2, 0.5, 0.0])
    np.testing.assert_allclose(shares(mix, ()), 0.25)
    np.testing.assert_allclose(shares(mix, active=1), [0.0, 0.0, 1.0, 0.0])


@few
@given(seeds, baselines)
def test_the_prior_expects_most_of_the_baseline_for_every_mix(seed, own):
    rng = np.random.default_rng(seed)
    mix = rng.dirichlet(np.ones(V)) * (1 - V * LEAST) + LEAST  # smaller shares than LEAST fall away
    blends = np.concatenate([shares(mix, own)[None], rng.dirichlet(np.ones(K), 200)])
    expected = gp.start(rules_of(own).prior, blends).mean @ mix
    assert expected[0] >= expected.max() - 1e-12


@few
@given(seeds, baselines)
def test_a_budget_of_0_never_leaves_the_baseline(seed, own):
    rng, router = np.random.default_rng(seed), careful(own, budget=0.0)
    for _ in range(12):
        mix = rng.dirichlet(np.ones(V))
        decision = router.ask(mix)
        np.testing.assert_allclose(decision.blend, shares(mix, own), atol=1e-12)
        router.tell(decision, rng.random(V), rng.integers(1, 60, V))
    assert (router.account.explored, router.account.gain) == (0, 0.0)


@few
@given(seeds, baselines, st.floats(0.001, 0.2))
@example(3326247, OWN, 0.125)  # here an extrapolation expects less than nothing of the baseline: it adds no budget
def test_nothing_is_tried_that_the_balance_does_not_pay_for(seed, own, budget):
    """Rewards are an adversary's: whatever leaves the baseline earns nothing."""
    rng, router = np.random.default_rng(seed), careful(own, seed=seed, budget=budget)
    for _ in range(25):
        mix, before = rng.dirichlet(np.ones(V)), router.account
        decision = router.ask(mix)
        why, base = router.explain(decision), shares(mix, own)
        assert why.balance == pytest.approx(before.balance + budget * max(why.baseline, 0.0))
        stays = np.allclose(decision.blend, base, atol=1e-12)
        assert stays or why.least_gain + why.balance >= 0
        router.tell(decision, np.full(V, 0.9 * stays), np.full(V, 20.0))
        after = router.account
        assert after.balance == pytest.approx(after.gain + budget * after.baseline)
        if before.balance < 0 and why.balance < 0:
            assert stays or why.least_gain > 0


def test_what_is_still_to_come_is_charged():
    router = careful(budget=0.02)
    rng = np.random.default_rng(0)
    for _ in range(30):
        decision = router.ask(rng.dirichlet(np.ones(V)))
        router.tell(decision, np.clip(0.3 + 0.5 * decision.blend[:V], 0, 1), np.full(V, 20.0))
    balances = [router.explain(router.ask([0.4, 0.3, 0.3])).balance for _ in range(4)]
    assert balances == sorted(balances, reverse=True)


def test_a_better_blend_is_found_and_the_accounts_say_so():
    router, mix = careful(), np.array([0.4, 0.3, 0.3])
    for _ in range(120):
        decision = router.ask(mix)
        router.tell(decision, np.full(V, 0.4 + 0.5 * decision.blend[0]), np.full(V, 40.0))
    account = router.account
    assert account.slots == 120
    assert 0 < account.swaps < 60
    assert account.gain > 0
    assert decision.blend[0] > shares(mix)[0] + 0.1


def test_the_served_blend_stays_where_little_is_to_gain(monkeypatch):
    swaps = {}
    for margin in (0.0, 0.05):
        monkeypatch.setattr(conservative, "MARGIN", margin)
        router, rng = careful(), np.random.default_rng(1)
        for _ in range(40):
            decision = router.ask(rng.dirichlet(np.full(V, 20.0)))
            router.tell(decision, np.full(V, 0.6), np.full(V, 20.0))
        swaps[margin] = router.account.swaps
    assert swaps[0.05] < swaps[0.0]


def test_what_was_declined_is_no_anchor_and_no_swap(monkeypatch):
    """The margin keeps what is served, and not what was only offered for another mix."""
    monkeypatch.setattr(conservative, "MARGIN", 0.1)
    router, twin = (careful(budget=1.0) for _ in range(2))
    for one in (router, twin):
        one.tell(one.ask(np.eye(V)[0]), np.full(V, 0.6), np.full(V, 20.0))
    router.tell(router.ask(np.eye(V)[2]), np.full(V, np.nan))
    assert router.account == twin.account
    mix = np.array([0.7, 0.0, 0.3])
    np.testing.assert_array_equal(router.ask(mix).blend, twin.ask(mix).blend)


def test_accounts_survive_save_and_load(tmp_path):
    router, rng = careful(), np.random.default_rng(0)
    for _ in range(10):
        router.tell(router.ask(rng.dirichlet(np.ones(V))), rng.random(V))
    router.save(tmp_path / "state.npz")
    assert Tanbr.load(tmp_path / "state.npz").account == router.account


def test_there_are_no_accounts_without_a_baseline():
    assert Tanbr(K, V).account is None
    assert Tanbr(K, V, mode="paper").account is None


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"budget": -0.1}, ConfigError, "budget"),
        ({"budget": 1.5}, ConfigError, "budget"),
        ({"baseline": "proportional"}, InputError, "needs own_experts"),
        ({"baseline": "best"}, ConfigError, "baseline"),
    ],
)
def test_what_makes_no_baseline_is_refused(changes, error, says):
    with pytest.raises(error, match=says) as raised:
        Tanbr(K, V, config={"default": changes})
    assert "\n" not in str(raised.value)


def test_a_reward_on_another_scale_is_refused_and_costs_nothing():
    router = careful()
    decision = router.ask([0.4, 0.3, 0.3])
    with pytest.raises(InputError, match=r"must lie in \[0, 1\]"):
        router.tell(decision, [50.0, 60.0, 70.0])
    assert router.account.slots == 0


def test_a_router_that_knows_nothing_leaves_its_start_where_that_pays() -> None:
    experts, seed = 8, 0
    mix = np.array([0.7] + [0.3 / (experts - 1)] * (experts - 1))
    router = Tanbr(experts, experts, seed=seed, config=RouterConfig().of_requests())
    rng, even, earned = np.random.default_rng(seed), np.full(experts, 1 / experts), []
    for _ in range(150):
        decision = router.ask(mix)
        truth = 0.3 + 0.6 * np.asarray(rise(decision.blend))  # each task's own expert is the one of its number
        earned.append(mix @ truth)
        counts = rng.multinomial(64, mix)
        told = np.where(counts > 0, rng.binomial(counts, truth) / np.maximum(counts, 1), np.nan)
        router.tell(decision, told, counts)
    best, start = (mix @ (0.3 + 0.6 * np.asarray(rise(blend))) for blend in (np.eye(experts)[0], even))
    assert np.mean(earned[100:]) - start > 0.5 * (best - start)  # 0 where it stays at the even blend


def test_a_declined_decision_is_no_anchor_and_no_swap(monkeypatch):
    """Admission and the guard decline what the router chose: the served blend stays the one to exceed by a margin."""
    monkeypatch.setattr(conservative, "MARGIN", 0.05)
    router, twin = (careful() for _ in range(2))
    rng = np.random.default_rng(1)
    for _ in range(20):
        mix = rng.dirichlet(np.full(V, 20.0))
        for one in (router, twin):
            decision = one.ask(mix)
            one.tell(decision, np.full(V, 0.6), np.full(V, 20.0))
        for declined in (router.ask(np.eye(V)[0]), router.ask(np.eye(V)[1], models=2)):  # far from the served blend
            router.decline(declined)
    assert router.account == twin.account
    np.testing.assert_array_equal(router.ask(mix).blend, twin.ask(mix).blend)


PANEL_MIX, GROUPED = np.array([0.4, 0.3, 0.2, 0.1]), (2, 0, 1, 3)


def of_panels(own=GROUPED, *, seed=0, **changes):
    small = {"room": 0, **changes}
    return Tanbr(4, 4, seed=seed, config=RouterConfig.model_validate({"default": small}).of_requests(own))


def straight(router, mix, models=2):
    return baseline_panel(Rules.of(Sizes(4, 4, 4), router.config.default), Readings.of(mix), models)


def test_the_baseline_panel_parts_the_tasks_and_shares_by_the_mix():
    base = straight(of_panels(), PANEL_MIX)
    assert set(base.home.tolist()) == {0, 1}
    for task, expert in enumerate(GROUPED):
        group = base.home == base.home[task]
        assert base.blends[base.home[task], expert] == pytest.approx(PANEL_MIX[task] / PANEL_MIX[group].sum())
    np.testing.assert_allclose(straight(of_panels(()), PANEL_MIX, 3).blends, 0.25)


@pytest.mark.parametrize("own", [GROUPED, ()])
@pytest.mark.parametrize("models", [2, 3])
def test_a_budget_of_0_never_leaves_the_baseline_panel(own, models):
    rng, router = np.random.default_rng(0), of_panels(own, budget=0.0)
    for _ in range(8):
        mix = rng.dirichlet(np.ones(4))
        panel = router.ask(mix, models=models)
        base = straight(router, mix, models)
        np.testing.assert_allclose(panel.blends, base.blends)
        assert panel.task_models.tolist() == base.home.tolist()
        router.tell(panel, rng.random((models, 4)), np.full((models, 4), 30.0))
    account = router.account
    assert (account.slots, account.explored, account.gain, account.budget) == (8, 0, 0.0, 0.0)


def test_a_panel_starts_at_the_baseline_and_a_better_one_is_found():
    router, rng = of_panels(), np.random.default_rng(0)

    def reward(blends):  # one expert is better for all tasks than their own
        return 0.3 + 0.5 * np.repeat(blends[:, :1], 4, axis=1)

    first = router.ask(PANEL_MIX, models=2)
    np.testing.assert_allclose(first.blends, straight(router, PANEL_MIX).blends)
    router.tell(first, reward(first.blends), np.full((2, 4), 40.0))
    for _ in range(40):
        panel = router.ask(PANEL_MIX, models=2)
        if not np.array_equal(panel.blends, straight(router, PANEL_MIX).blends):
            assert panel.why.least_gain >= -panel.why.balance - 1e-12
        noise = 0.02 * rng.normal(size=(2, 4))
        router.tell(panel, np.clip(reward(panel.blends) + noise, 0, 1), np.full((2, 4), 40.0))
    account = router.account
    assert account.slots == 41
    assert account.explored > 0
    assert account.gain > 0
    assert account.balance == pytest.approx(account.gain + account.budget)
    served, base = panel.blends[panel.task_models], straight(router, PANEL_MIX)
    assert PANEL_MIX @ served[:, 0] > PANEL_MIX @ base.blends[base.home][:, 0]


def booked(rewards_at, *, slots, kept=256):
    """A ledger of a router of two experts and tasks that leaves its even baseline for the first expert."""
    rules = Rules.of(Sizes(2, 2, 2), RouterConfig().of_requests().default)
    known, mix = rules.start(np.random.default_rng(0)), np.array([0.75, 0.25])
    decision = Decision(0, mix, np.eye(2)[:1], np.ones((1, 2)))
    for slot in range(slots):
        posterior, _ = gp.observe(rules.prior, known.posterior, np.eye(2)[0], rewards_at(slot), np.full(2, 1e6))
        known = entered(rules, replace(known, posterior=posterior), decision)
    return rules, known


def test_slots_are_valued_anew_by_what_is_known_until_they_are_settled(monkeypatch):
    rules, known = booked(lambda _: np.full(2, 0.9), slots=2)
    assert (known.ledger.slots, known.ledger.off, known.ledger.swaps) == (2, 2, 0)
    even = gp.mean_at(rules.prior, known.posterior, np.full((1, 2), 0.5))[0] @ [0.75, 0.25]
    assert total_gain(rules, known) == pytest.approx(2 * (0.9 - even), abs=1e-4)
    before = total_gain(rules, known)
    posterior, _ = gp.observe(rules.prior, known.posterior, np.eye(2)[0], np.zeros(2), np.full(2, 1e7))
    later = replace(known, posterior=posterior)
    assert total_gain(rules, later) < before - 0.1  # a reward that comes later corrects earlier slots
    done = replace(settled(rules, known), posterior=posterior)
    assert total_gain(rules, done) == pytest.approx(before)  # a change leaves the past as it was valued
    monkeypatch.setattr(conservative, "KEPT", 1)
    assert len(booked(lambda _: np.full(2, 0.9), slots=3)[1].ledger.mixes) == 1


def test_a_panels_entries_add_up_to_its_gain():
    router, rng = of_panels(budget=1.0), np.random.default_rng(0)
    for _ in range(6):
        router.tell(router.ask(PANEL_MIX, models=2), rng.random((2, 4)), np.full((2, 4), 50.0))
    rules, known = Rules.of(Sizes(4, 4, 4), router.config.default), router._state.known
    panel, base, before = router.ask(PANEL_MIX, models=2), straight(router, PANEL_MIX), total_gain(rules, known)
    after = entered(rules, known, panel)
    mean = gp.mean_at(rules.prior, known.posterior, np.concatenate([panel.blends, base.blends]))
    own = mean[:2][panel.task_models, range(4)] - mean[2:][base.home, range(4)]
    assert total_gain(rules, after) - before == pytest.approx(float(PANEL_MIX @ own))
