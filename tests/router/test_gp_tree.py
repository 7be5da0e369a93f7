import numpy as np
import pytest

from tanbr.errors import InputError
from tanbr.router import Tanbr
from tanbr.router.config import DefaultModeConfig, RouterConfig
from tanbr.router.gp_tree import GpTree, fixed_blends
from tanbr.router.sizes import Sizes
from tanbr.testing import toy

K, V = toy.K, toy.V


def default(**settings):
    return Tanbr(K, V, config=RouterConfig.model_validate({"default": settings}))


def policy_after(slots, *, unseen=0.0, noise=0.02, **settings):
    """The policy alone, after some slots of the toy world."""
    policy = GpTree(Sizes.check(K, V), config=DefaultModeConfig(**settings), rng=np.random.default_rng(0))
    rng = np.random.default_rng(0)
    for _ in range(slots):
        mix = rng.dirichlet(np.ones(V))
        blend, terms = policy.choose(mix, [])
        reward = np.clip(toy.toy_reward(blend) + noise * rng.normal(size=V), 0, 1)
        counts = (rng.random(V) >= unseen).astype(float)
        policy.learn(mix, blend, terms, np.where(counts > 0, reward, np.nan), counts)
    return policy


def test_fixed_blends_hold_every_single_expert_and_the_even_blend():
    blends = fixed_blends(Sizes(6, 2, 6), 100, np.random.default_rng(0))
    assert len(blends) == 100
    assert np.array_equal(blends[:6], np.eye(6))
    assert np.allclose(blends[6], 1 / 6)
    sparse = fixed_blends(Sizes(6, 2, 2), 100, np.random.default_rng(0))
    assert (np.count_nonzero(sparse, axis=1) <= 2).all()


def test_the_chosen_blend_has_the_highest_bound_of_all_candidates():
    policy, mix = policy_after(40), np.array([0.4, 0.3, 0.2, 0.1])
    pool = policy.posterior
    bound = pool.mean @ mix + policy.beta * np.sqrt(pool.variance_of(mix, pool.gain))
    bound[policy.nodes][~policy.tree.used] = -np.inf
    blend, terms = policy.choose(mix, [])
    assert terms.bound == pytest.approx(bound.max())
    assert np.linalg.norm(pool.points[bound.argmax()] - blend) < policy.config.snap


def test_a_router_that_knows_the_tasks_own_experts_starts_with_them():
    router = Tanbr(K, V, config=RouterConfig().of_requests((2, 0, 1, 3)))
    np.testing.assert_allclose(router.ask([0.4, 0.3, 0.2, 0.1]).blend, [0.3, 0.2, 0.4, 0.1, 0.0])  # by the shares
    assert router.ask([0, 1, 0, 0]).blend.argmax() == 0
    assert router.ask([0, 0, 0.05, 0.95]).blend.argmax() == 3


@pytest.mark.parametrize("own", [(0, 1), (0, 1, 2, K)])
def test_own_experts_must_fit(own):
    with pytest.raises(InputError, match="own_experts must name one"):
        default(own_experts=own)


def test_optimism_falls_as_slots_are_told_but_no_faster_than_there_was_something_to_learn():
    quick = {"beta_half": 20, "learned_half": 6}
    config = DefaultModeConfig(**quick, refits=(), noise_fits=())
    policy = GpTree(Sizes.check(K, V), config=config, rng=np.random.default_rng(0))
    _, terms = policy.choose(toy.EVEN, [])
    for _ in range(80):
        policy.learn(toy.EVEN, np.eye(K)[0], terms, np.full(V, 0.5), np.ones(V))
    share = config.noise**2 / (config.mean_variance + config.variance)  # of the prior's variance
    left = share / (share + np.arange(80))  # before the n-th reward of one blend
    assert policy.learned == pytest.approx(np.sqrt(left).sum())
    many = policy_after(80, **quick)
    assert many.told == policy.told == 80.0
    assert many.learned > 2 * policy.learned
    assert many.beta < policy.beta < 2.0


def test_open_decisions_are_not_repeated():
    router = default()
    toy.play(router, 2)
    decisions = [router.ask(toy.EVEN) for _ in range(4)]
    assert len({decision.blend.tobytes() for decision in decisions}) > 1


def test_an_arm_from_a_warm_start_with_too_many_experts_is_not_played():
    router = Tanbr(4, 2, max_active=2)
    dense = np.array([[0.49, 0.49, 0.02, 0.0]])  # near the blend of two, which is the best
    rewards = np.full((21, 2), 0.1)
    rewards[0] = 1.0
    router.warm_start(np.concatenate([dense, np.repeat(np.eye(4), 5, axis=0)]), rewards)
    for _ in range(10):
        decision = router.ask([0.5, 0.5])
        assert np.count_nonzero(decision.blend) <= 2
        router.tell(decision, [0.5, 0.5])


def test_memory_and_candidates_stay_bounded():
    policy = policy_after(150, noise=0.2, arms=16, room=30, snap=0.001)
    assert policy.posterior.used <= 16
    assert len(policy.view()) <= 30
    assert policy.posterior.inverse.shape[1:] == (16, 16)


def test_kept_posterior_does_not_drift_from_a_fresh_one():
    policy = policy_after(150, unseen=0.2)
    pool = policy.posterior
    mean, gain = pool.mean.copy(), pool.gain.copy()
    pool.rebuild()
    used = np.ones(len(mean), dtype=bool)
    used[policy.nodes] = policy.tree.used
    # 150 rank-one changes of a matrix whose condition is at most 1 + n·prior/noise ≈ 7000 against one inversion
    bound = 150 * 192 * 7000 * np.finfo(float).eps
    assert np.abs(mean[used] - pool.mean[used]).max() < bound
    assert np.abs(gain[used] - pool.gain[used]).max() < bound


def test_the_tree_goes_deep_where_reward_is_high():
    router = default()
    toy.play(router, 120)
    tree = router.tree
    best = np.array([toy.toy_reward(x)[0] for x in tree.blend])
    assert tree.depth.max() >= 3
    assert best[tree.depth >= 3].mean() > best[0] + 0.1


def test_a_map_that_moves_is_followed():
    def reward_after_move(**settings):
        router, rng, total = default(**settings), np.random.default_rng(0), 0.0
        for slot in range(180):
            decision = router.ask(toy.EVEN)
            blend = decision.blend if slot < 120 else decision.blend[::-1]
            reward = toy.toy_reward(blend)
            total += reward[0] * (slot >= 120)
            router.tell(decision, np.clip(reward + 0.02 * rng.normal(size=V), 0, 1))
        return total / 60

    still = reward_after_move(change=0.0)
    assert reward_after_move() > still + 0.3
