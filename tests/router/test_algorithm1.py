"""Algorithm 1, line by line."""

import numpy as np
import pytest
from tanbr.router.algorithm1 import Algorithm1
from tanbr.router.argmax import first_best
from tanbr.router.network import unit
from tanbr.router.rewards import RewardTable
from tanbr.router.sizes import Sizes

from tanbr.router import network, theory
from tanbr.router.config import PaperModeConfig, RouterConfig

K, V = 4, 3
MIX = np.array([0.5, 0.3, 0.2])


def paper(**settings):
    config = PaperModeConfig.model_validate({"width": 8, **settings})
    return Algorithm1(Sizes.check(K, V), config=config, rng=np.random.default_rng(0))


def tell(policy, mix, reward):
    """One slot: lines 3 to 14."""
    blend, terms = policy.choose(mix, [])
    reward = np.asarray(reward, dtype=float)
    policy.learn(mix, blend, terms, reward, (~np.isnan(reward)).astype(float))
    return blend, terms


def run(policy, slots, *, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(slots):
        tell(policy, rng.dirichlet(np.ones(V)), rng.random(V))
    return policy


def test_the_papers_constants_are_the_defaults():
    config = RouterConfig().paper
    assert (config.nu, config.ridge, config.exploration, config.delta) == (1.0, 1.0, 1.0, 1.0)
    assert (config.width, config.layers, config.loss, config.representative) == (64, 2, "sum", "lp")


def test_line_1():
    state = paper(ridge=0.7).state
    assert np.abs(network.predict(state.belief.theta, unit(np.eye(K)))).max() < 1e-12
    assert all((layer == 0.7).all() for layer in state.belief.Z.diagonal)
    assert (state.tree.low == 0).all()
    assert (state.tree.high == 1).all()
    assert len(state.tree) == 1


@pytest.mark.parametrize("confidence", ["exact", "diagonal"])
@pytest.mark.parametrize("layers", [2, 3])
def test_bound_has_the_three_terms_of_the_paper(confidence, layers):
    policy = run(paper(confidence=confidence, layers=layers, rho=0.9, exploration=0.4, nu=0.6), 40)
    belief = policy.state.belief
    blend, terms = policy.choose(MIX, [])
    value, gradient = network.value_and_gradient(belief.theta, unit(blend[None]), MIX)
    g = gradient.dense()[0]
    if confidence == "diagonal":
        squared = (g * g / np.concatenate([layer.ravel() for layer in belief.Z.diagonal])).sum() / 8
    else:
        told = network.Gradient(belief.Z.back, belief.Z.front).dense()
        squared = g @ np.linalg.solve(np.eye(len(g)) + told.T @ told / 8, g) / 8
    assert terms.mean == pytest.approx(float(value[0]))
    assert terms.granularity == pytest.approx(0.6 * 0.9**terms.depth)
    assert terms.uncertainty == pytest.approx(0.4 * np.sqrt(squared))
    assert terms.bound == terms.mean + terms.granularity + terms.uncertainty


def test_lines_4_to_7():
    policy = run(paper(rho=0.9), 60)
    tree, belief = policy.state.tree, policy.state.belief
    leaves = tree.active_leaves
    assert len(leaves) > 5
    mean, gradient = network.value_and_gradient(belief.theta, unit(tree.blend[leaves]), MIX)
    bound = mean + 0.9 ** tree.depth[leaves] + np.sqrt(belief.Z.squared_width(gradient))
    blend, terms = policy.choose(MIX, [])
    assert terms.node == leaves[first_best(bound)]
    assert terms.bound == pytest.approx(bound.max())
    assert np.array_equal(blend, tree.blend[terms.node])


def test_lines_9_to_12():
    policy, rng = paper(rho=0.7, threshold_constant=1.3, delta=0.5), np.random.default_rng(0)
    for t in range(1, 120):
        before = policy.state.tree
        node = tell(policy, MIX, rng.random(V))[1].node
        after = policy.state.tree
        assert after.visits[node] == before.visits[node] + 1
        tau = theory.expansion_threshold(before.depth[node], t, constant=1.3, nu=1.0, rho=0.7, delta=0.5)
        assert (len(after) == len(before) + 2) == (after.visits[node] >= tau)
    assert after.visits.sum() == 119


def test_lines_13_and_14():
    policy = run(paper(confidence="diagonal", steps=3, learning_rate=1e-4), 10)
    before = policy.state.belief
    blend, _ = tell(policy, MIX, [0.2, np.nan, 0.9])
    after = policy.state.belief
    g = network.value_and_gradient(before.theta, unit(blend[None]), MIX)[1]  # at θ_{t−1}
    for layer, old, back, front in zip(after.Z.diagonal, before.Z.diagonal, g.back, g.front, strict=True):
        np.testing.assert_allclose(layer, old + np.outer(back[0] ** 2, front[0] ** 2) / 8, rtol=1e-12)
    theta = before.theta
    for _ in range(3):
        slopes = network.loss_and_gradient(theta, after.start, after.rewards, ridge=1.0, scale=1.0)[1]
        theta = [a - 1e-4 * b for a, b in zip(theta, slopes, strict=True)]
    for mine, theirs in zip(theta, after.theta, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-15)


def test_a_slot_makes_a_new_state_and_leaves_the_old_one_alone():
    policy = run(paper(), 5)
    before = policy.state
    kept = [layer.copy() for layer in (*before.belief.theta, *before.belief.Z.diagonal, before.tree.visits)]
    tell(policy, MIX, np.full(V, 0.5))
    assert policy.state is not before
    now = (*before.belief.theta, *before.belief.Z.diagonal, before.tree.visits)
    assert all(np.array_equal(a, b) for a, b in zip(kept, now, strict=True))
    policy.restore(before)
    assert policy.state is before


def test_pooled_rewards_have_the_loss_gradient_of_the_single_ones():
    policy, rng, told = paper(rho=0.3), np.random.default_rng(0), []
    for _ in range(30):
        reward = rng.random(V)
        told.append((unit(tell(policy, MIX, reward)[0][None])[0], reward))
    belief = policy.state.belief
    assert len(belief.rewards.inputs) < 10
    inputs, rewards = (np.array(column) for column in zip(*told, strict=True))
    single = RewardTable(inputs, rewards, np.ones((30, V)), np.arange(30), 30.0)
    one = network.loss_and_gradient(belief.theta, belief.start, belief.rewards, ridge=1.0, scale=1.0)[1]
    other = network.loss_and_gradient(belief.theta, belief.start, single, ridge=1.0, scale=1.0)[1]
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


def test_old_blends_leave_when_memory_is_full():
    policy = paper(memory=3)
    for blend in np.random.default_rng(0).dirichlet(np.ones(K), size=5):
        policy.warm_start(blend, np.full(V, 0.5), np.ones(V))
    rewards = policy.state.belief.rewards
    assert len(rewards.inputs) == 3
    assert rewards.total == pytest.approx(3.0)


def test_late_rewards_may_find_their_leaf_expanded():
    policy = paper()
    chosen = [policy.choose(MIX, []) for _ in range(4)]
    for blend, terms in chosen:
        policy.learn(MIX, blend, terms, np.full(V, 0.5), np.ones(V))
    assert policy.state.tree.visits[0] == 4
    assert len(policy.state.tree) == 3


def test_the_papers_largest_step_does_not_diverge():
    belief = run(paper(learning_rate=0.1, width=64), 60).state.belief
    assert all(np.isfinite(theta).all() for theta in belief.theta)
    assert belief.rate < 0.1
