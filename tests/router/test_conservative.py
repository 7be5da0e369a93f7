"""The rule that bounds what exploration may cost."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tanbr.errors import ConfigError, InputError
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.router.conservative import baseline_of
from tanbr.router.kernel import LEAST, rise
from tanbr.router.posterior import PooledPosterior
from tanbr.router.sizes import Sizes

K, V = 4, 3
OWN = (2, 0, 1)
few = settings(max_examples=12)
seeds = st.integers(0, 2**31)
baselines = st.sampled_from([(), OWN])


def careful(own=OWN, *, seed=0, **changes):
    return Tanbr(K, V, seed=seed, config=RouterConfig.model_validate({"default": changes}).of_requests(own))


def shares(mix, own=OWN):
    return baseline_of(RouterConfig().of_requests(own).default, Sizes(K, V, K), mix)


def test_the_baseline_follows_the_shares_or_is_even_or_given():
    mix = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(shares(mix), [0.3, 0.2, 0.5, 0.0])
    np.testing.assert_allclose(shares(mix, ()), 0.25)
    given_ = RouterConfig.model_validate({"default": {"baseline": (0.5, 0.5, 0.0, 0.0)}}).default
    np.testing.assert_allclose(baseline_of(given_, Sizes(K, V, K), mix), [0.5, 0.5, 0.0, 0.0])
    alone = RouterConfig().of_requests(OWN).default
    np.testing.assert_allclose(baseline_of(alone, Sizes(K, V, 1), mix), [0.0, 0.0, 1.0, 0.0])


@few
@given(seeds, baselines)
def test_the_prior_expects_most_of_the_baseline_for_every_mix(seed, own):
    rng = np.random.default_rng(seed)
    mix = rng.dirichlet(np.ones(V)) * (1 - V * LEAST) + LEAST  # smaller shares than LEAST fall away
    config = RouterConfig().of_requests(own).default
    blends = np.concatenate([shares(mix, own)[None], rng.dirichlet(np.ones(K), 200)])
    expected = PooledPosterior(blends, tasks=V, config=config).mean @ mix
    assert expected[0] >= expected.max() - 1e-12


@few
@given(seeds, baselines)
def test_a_budget_of_0_never_leaves_the_baseline(seed, own):
    rng, router = np.random.default_rng(seed), careful(own, budget=0.0)
    for _ in range(12):
        mix = rng.dirichlet(np.ones(V))
        decision = router.ask(mix)
        np.testing.assert_array_equal(decision.blend, shares(mix, own))
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
        stays = np.array_equal(decision.blend, base)
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


def test_the_served_blend_stays_where_little_is_to_gain():
    swaps = {}
    for margin in (0.0, 0.05):
        router, rng = careful(margin=margin), np.random.default_rng(1)
        for _ in range(40):
            decision = router.ask(rng.dirichlet(np.full(V, 20.0)))
            router.tell(decision, np.full(V, 0.6), np.full(V, 20.0))
        swaps[margin] = router.account.swaps
    assert swaps[0.05] < swaps[0.0]


def test_what_was_declined_is_no_anchor_and_no_swap():
    """The margin keeps what is served, and not what was only offered for another mix."""
    router, twin = (careful(margin=0.1, budget=1.0) for _ in range(2))
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
        ({"baseline": (0.5, 0.6, 0.0, 0.0)}, InputError, "baseline: blend must sum to 1"),
        ({"baseline": (1.5, -0.5, 0.0, 0.0)}, InputError, "baseline: blend"),
        ({"baseline": (1.0, 0.0)}, InputError, "baseline: blend"),
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
