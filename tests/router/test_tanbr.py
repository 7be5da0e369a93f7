"""Algorithm 1, line by line."""

import numpy as np
import pytest

import checks
from tanbr.errors import ConfigError, InputError
from tanbr.router import Tanbr, network, theory
from tanbr.router.config import RouterConfig
from tanbr.router.network import unit

K, V = 4, 3
MIX = np.array([0.5, 0.3, 0.2])


def paper(**settings):
    return Tanbr(K, V, mode="paper", config=RouterConfig.model_validate({"paper": {"width": 8, **settings}}))


def run(router, slots, *, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(slots):
        router.tell(router.ask(rng.dirichlet(np.ones(V))), rng.random(V))
    return router._policy


def test_the_papers_constants_are_the_defaults():
    config = RouterConfig().paper
    assert (config.nu, config.ridge, config.exploration, config.delta) == (1.0, 1.0, 1.0, 1.0)
    assert (config.width, config.layers, config.loss, config.representative) == (64, 2, "sum", "lp")


def test_line_1():
    policy = paper(ridge=0.7)._policy
    assert np.abs(network.predict(policy.theta, unit(np.eye(K)))).max() < 1e-12
    assert all((layer == 0.7).all() for layer in policy.Z.diagonal)
    assert (policy.tree.low == 0).all()
    assert (policy.tree.high == 1).all()
    assert len(policy.tree) == 1


@pytest.mark.parametrize("confidence", ["exact", "diagonal"])
@pytest.mark.parametrize("layers", [2, 3])
def test_bound_has_the_three_terms_of_the_paper(confidence, layers):
    router = paper(confidence=confidence, layers=layers, rho=0.9, exploration=0.4, nu=0.6)
    policy = run(router, 40)
    parameters = sum(theta.size for theta in policy.theta)
    decision = router.ask(MIX)
    terms = router.explain(decision)
    x = unit(decision.blend[None])
    value, gradient = network.value_and_gradient(policy.theta, x, MIX)
    g = gradient.dense()[0]
    if confidence == "diagonal":
        inverse = 1 / np.concatenate([layer.ravel() for layer in policy.Z.diagonal])
        squared = (g * g * inverse).sum() / 8
    else:
        told = policy.Z.told.dense()
        squared = g @ np.linalg.solve(np.eye(parameters) + told.T @ told / 8, g) / 8
    assert terms.mean == pytest.approx(float(value[0]))
    assert terms.granularity == pytest.approx(0.6 * 0.9**terms.depth)
    assert terms.uncertainty == pytest.approx(0.4 * np.sqrt(squared))
    assert terms.bound == pytest.approx(terms.mean + terms.granularity + terms.uncertainty)


def test_lines_4_to_7():
    router = paper(rho=0.9)
    policy = run(router, 60)
    leaves = policy.tree.active_leaves
    assert np.array_equal(policy.leaves, leaves)
    assert len(leaves) > 5
    mean, gradient = network.value_and_gradient(policy.theta, unit(policy.tree.blend[leaves]), MIX)
    bound = mean + 0.9 ** policy.tree.depth[leaves] + np.sqrt(policy.Z.squared_width(gradient))
    decision = router.ask(MIX)
    terms = router.explain(decision)
    assert terms.node == leaves[bound.argmax()]
    assert terms.bound == pytest.approx(bound.max())
    assert np.array_equal(decision.blend, policy.tree.blend[terms.node])


def test_lines_9_to_12():
    router = paper(rho=0.7, threshold_constant=1.3, delta=0.5)
    policy, rng = router._policy, np.random.default_rng(0)
    for t in range(1, 120):
        decision = router.ask(MIX)
        node = router.explain(decision).node
        before, size = policy.tree.visits[node], len(policy.tree)
        router.tell(decision, rng.random(V))
        assert policy.tree.visits[node] == before + 1
        tau = theory.expansion_threshold(policy.tree.depth[node], t, constant=1.3, nu=1.0, rho=0.7, delta=0.5)
        assert (len(policy.tree) == size + 2) == (before + 1 >= tau)
    assert policy.tree.visits.sum() == 119


def test_lines_13_and_14():
    router = paper(confidence="diagonal", steps=3, learning_rate=1e-4)
    policy = run(router, 10)
    theta, diagonal = policy.theta, [layer.copy() for layer in policy.Z.diagonal]
    decision = router.ask(MIX)
    router.tell(decision, [0.2, np.nan, 0.9])
    x = unit(decision.blend[None])
    g = network.value_and_gradient(theta, x, MIX)[1]  # at θ_{t−1}
    for layer, old, back, front in zip(policy.Z.diagonal, diagonal, g.back, g.front, strict=True):
        assert np.allclose(layer, old + np.outer(back[0] ** 2, front[0] ** 2) / 8)
    for _ in range(3):
        slopes = network.loss_and_gradient(theta, policy.start, policy.rewards.data, ridge=1.0, scale=1.0)[1]
        theta = [a - 1e-4 * b for a, b in zip(theta, slopes, strict=True)]
    assert all(np.allclose(a, b) for a, b in zip(theta, policy.theta, strict=True))


def test_pooled_rewards_have_the_loss_gradient_of_the_single_ones():
    router = paper(rho=0.3)
    rng = np.random.default_rng(0)
    told = []
    for _ in range(30):
        decision, reward = router.ask(MIX), rng.random(V)
        router.tell(decision, reward)
        told.append((unit(decision.blend[None])[0], reward))
    policy = router._policy
    pooled = policy.rewards.data
    assert len(pooled.inputs) < 10
    single = network.Data(*(np.array(column) for column in zip(*told, strict=True)), np.ones((30, V)))
    one = network.loss_and_gradient(policy.theta, policy.start, pooled, ridge=1.0, scale=1.0)[1]
    other = network.loss_and_gradient(policy.theta, policy.start, single, ridge=1.0, scale=1.0)[1]
    assert all(np.allclose(a, b) for a, b in zip(one, other, strict=True))


def test_old_blends_leave_when_memory_is_full():
    router = paper(memory=3)
    router.warm_start(np.random.default_rng(0).dirichlet(np.ones(K), size=5), np.full((5, V), 0.5))
    assert len(router._policy.rewards.data.inputs) == 3
    assert router._policy.rewards.total == pytest.approx(3.0)


def test_late_rewards_may_find_their_leaf_expanded():
    router = paper()
    decisions = [router.ask(MIX) for _ in range(4)]
    for decision in decisions:
        router.tell(decision, np.full(V, 0.5))
    tree = router._policy.tree
    assert tree.visits[0] == 4
    assert len(tree) == 3


def test_the_papers_largest_step_does_not_diverge():
    router = paper(learning_rate=0.1, width=64)
    policy = run(router, 60)
    assert all(np.isfinite(theta).all() for theta in policy.theta)
    assert policy.rate < 0.1


def test_refuses_modes_and_settings_that_do_not_exist():
    with pytest.raises(InputError, match='"default" or "paper"'):
        Tanbr(K, V, mode="fast")
    with pytest.raises(ConfigError, match="learning_rate"):
        paper(gamma="theory", learning_rate=0.5)
    with pytest.raises(ConfigError, match="did you mean 'snap'"):
        Tanbr(K, V, config={"default": {"snapp": 0.1}})
    with pytest.raises(InputError, match="seed"):
        Tanbr(K, V, seed=-1)


def test_modes_do_not_load_each_others_settings(tmp_path):
    router = paper(rho=0.3)
    checks.play(Tanbr(K, V, mode="paper"), 3)
    router.save(tmp_path / "state.npz")
    loaded = Tanbr.load(tmp_path / "state.npz")
    assert loaded.mode == "paper"
    assert loaded.config == router.config
