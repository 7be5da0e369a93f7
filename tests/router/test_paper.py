"""Algorithm 1, line by line: tree, network, confidence and loop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog

from tanbr.errors import ConfigError
from tanbr.router import paper as network
from tanbr.router import theory
from tanbr.router.config import PaperModeConfig
from tanbr.router.paper import (
    Algorithm1,
    DiagonalConfidence,
    ExactConfidence,
    PartitionTree,
    RewardTable,
    corner_point,
    initial_weights,
    is_feasible,
    proportional_point,
    theory_gamma,
    unit,
    value_and_gradient,
)
from tanbr.router.shell import Question
from tanbr.router.simplex import Sizes, first_best

QUICK = settings(max_examples=40, deadline=None)
K, V = 4, 3
MIX = np.array([0.5, 0.3, 0.2])


@st.composite
def boxes(draw):
    size = draw(st.integers(2, 6))
    sides = draw(arrays(np.float64, (2, size), elements=st.floats(0.0, 1.0)))
    return sides.min(axis=0), sides.max(axis=0)


@given(boxes())
@QUICK
def test_feasible_exactly_when_the_linear_program_is(box):
    low, high = box
    if min(abs(low.sum() - 1), abs(high.sum() - 1)) < 1e-6:
        return  # HiGHS works to a tolerance
    reference = linprog(np.zeros(len(low)), A_eq=np.ones((1, len(low))), b_eq=[1.0], bounds=np.c_[low, high])
    assert is_feasible(low, high) == (reference.status == 0)


@given(boxes())
@QUICK
def test_representatives_lie_in_the_box_and_sum_to_one(box):
    low, high = box
    if not is_feasible(low, high):
        return
    for point in (corner_point(low, high), proportional_point(low, high)):
        assert point.sum() == pytest.approx(1.0, abs=1e-12)
        assert (point >= low - 1e-9).all()
        assert (point <= high + 1e-9).all()


def test_corner_point_solves_the_program_that_fills_the_first_experts_first():
    rng = np.random.default_rng(0)
    for _ in range(20):
        low = rng.random(5) * 0.15
        high = low + rng.random(5) * 0.6
        if is_feasible(low, high):
            cost = -(2.0 ** -np.arange(5))
            best = linprog(cost, A_eq=np.ones((1, 5)), b_eq=[1.0], bounds=np.c_[low, high]).x
            assert np.allclose(corner_point(low, high), best, atol=1e-7)


def grown(experts, seed, expansions, *, interior=False):
    rng, point = np.random.default_rng(seed), proportional_point if interior else corner_point
    tree = PartitionTree.root(experts, point=point)
    for _ in range(expansions):
        tree = tree.expanded(int(rng.choice(tree.active_leaves)), rng=rng, point=point)
    return tree


@given(st.integers(2, 6), st.integers(0, 1000), st.integers(0, 25), st.booleans())
@settings(max_examples=30, deadline=None)
def test_leaves_cover_the_simplex_without_overlap(experts, seed, expansions, interior):
    tree = grown(experts, seed, expansions, interior=interior)
    points = np.random.default_rng(seed).dirichlet(np.ones(experts), size=50)
    inside = ((points[:, None] >= tree.low[tree.leaf]) & (points[:, None] < tree.high[tree.leaf])).all(axis=2)
    assert (inside.sum(axis=1) == 1).all()  # almost surely no point lies on a boundary
    assert not inside[:, ~tree.active[tree.leaf]].any()


SIZES = [(4, 8, 3, 2), (5, 16, 2, 3), (3, 8, 1, 4)]  # K, w, V, L


def table(inputs, target, weight):
    return RewardTable(inputs, target, weight, float(len(inputs)))


def build(inputs, width, outputs, layers, *, seed=0, moved=True):
    rng = np.random.default_rng(seed)
    start = network.initial_weights(inputs=inputs, width=width, outputs=outputs, layers=layers, rng=rng)
    weights = [theta + 0.1 * rng.normal(size=theta.shape) * moved for theta in start]
    x = network.unit(rng.dirichlet(np.ones(inputs), size=6))
    return start, weights, x, rng


@pytest.mark.parametrize("sizes", SIZES)
def test_starts_at_zero_with_the_number_of_weights_the_formula_gives(sizes):
    inputs, width, outputs, layers = sizes
    start, _, x, _ = build(*sizes)
    assert np.abs(network.predict(start, x)).max() < 1e-12
    assert sum(t.size for t in start) == width * inputs + width * outputs + width**2 * (layers - 2)


@pytest.mark.parametrize("sizes", SIZES)
def test_gradient_matches_finite_differences(sizes):
    _, weights, x, rng = build(*sizes)
    mix = rng.dirichlet(np.ones(sizes[2]))
    value, gradient = network.value_and_gradient(weights, x, mix)
    assert np.allclose(value, network.predict(weights, x) @ mix)
    flat = np.concatenate([theta.ravel() for theta in weights])
    shapes = np.cumsum([theta.size for theta in weights])[:-1]

    def at(vector):
        parts = [p.reshape(t.shape) for p, t in zip(np.split(vector, shapes), weights, strict=True)]
        return network.predict(parts, x) @ mix

    numeric = np.array([(at(flat + h) - at(flat - h)) / 2e-6 for h in 1e-6 * np.eye(len(flat))]).T  # (n, p)
    assert np.allclose(gradient.dense(), numeric, atol=1e-5)


@pytest.mark.parametrize("sizes", SIZES)
def test_loss_gradient_matches_finite_differences(sizes):
    start, weights, x, rng = build(*sizes)
    data = table(x, rng.random((6, sizes[2])), rng.integers(0, 3, (6, sizes[2])).astype(float))
    options = {"ridge": 0.7, "scale": 0.3}
    _, slopes = network.loss_and_gradient(weights, start, data, **options)
    for layer, slope in enumerate(slopes):
        for place in [(0, 0), (slope.shape[0] - 1, slope.shape[1] - 1)]:
            ends = []
            for step in (1e-6, -1e-6):
                moved = [theta.copy() for theta in weights]
                moved[layer][place] += step
                ends.append(network.loss_and_gradient(moved, start, data, **options)[0])
            assert slope[place] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-5)


def test_folding_the_doubled_input_changes_nothing():
    """Train on [x, x]/√2 with block-diagonal θ_1, and on x with the folded one: the same predictions."""
    start, _, x, rng = build(4, 8, 3, 2)
    doubled = np.hstack([x, x]) / np.sqrt(2)
    zero, block = np.zeros((4, 4)), start[0][:4] * np.sqrt(2)
    wide = [np.block([[block, zero], [zero, block]]), start[1]]
    target, weight = rng.random((6, 3)), np.ones((6, 3))
    options = {"ridge": 0.0, "scale": 1.0, "rate": 1e-3, "steps": 50}
    folded, _ = network.descend(start, start, table(x, target, weight), **options)
    full, _ = network.descend(wide, wide, table(doubled, target, weight), **options)
    assert np.allclose(network.predict(folded, x), network.predict(full, doubled))
    mix = np.full(3, 1 / 3)
    one, two = (network.value_and_gradient(*at, mix)[1].dense() for at in ((folded, x), (full, doubled)))
    assert np.allclose(one @ one.T, two @ two.T)


def test_a_step_that_diverges_is_halved_until_it_does_not():
    start, weights, x, rng = build(4, 8, 3, 2)
    data = table(x, rng.random((6, 3)), np.full((6, 3), 1e4))
    before = network.loss_and_gradient(weights, start, data, ridge=1.0, scale=1.0)[0]
    got, rate = network.descend(weights, start, data, ridge=1.0, scale=1.0, rate=0.1, steps=10)
    assert rate < 0.1
    assert network.loss_and_gradient(got, start, data, ridge=1.0, scale=1.0)[0] < before


ONE, TWO, THREE = np.eye(3)


def table_of(*rows) -> RewardTable:
    table = RewardTable(np.zeros((0, 3)), np.zeros((0, 2)), np.zeros((0, 2)), 0.0)
    for x, reward, counts in rows:
        table = table.added(x, np.array(reward), np.array(counts), limit=8)
    return table


def test_rewards_of_one_blend_are_pooled_by_their_counts_and_a_full_table_forgets_the_oldest() -> None:
    table = table_of((ONE, [0.0, np.nan], [1.0, 0.0]), (TWO, [1.0, 1.0], [1.0, 1.0]), (ONE, [1.0, 0.75], [3.0, 2.0]))
    assert table.inputs.tolist() == [ONE.tolist(), TWO.tolist()]
    assert table.target.tolist() == [[0.75, 0.75], [1.0, 1.0]]  # an unseen task changes nothing
    assert table.weight.tolist() == [[4.0, 2.0], [1.0, 1.0]]
    assert table.total == 4.0
    full = table.added(THREE, np.ones(2), np.full(2, 2.0), limit=2)
    assert full.inputs.tolist() == [TWO.tolist(), THREE.tolist()]
    assert full.total == 3.0


W, RIDGE = 4, 0.8


def gradients(count, *, layers):
    """Single gradients at changing weights, as a run makes them."""
    rng = np.random.default_rng(0)
    weights = initial_weights(inputs=K, width=W, outputs=V, layers=layers, rng=rng)
    for _ in range(count):
        weights = [theta + 0.3 * rng.normal(size=theta.shape) for theta in weights]
        x = unit(rng.dirichlet(np.ones(K), size=1))
        yield value_and_gradient(weights, x, rng.dirichlet(np.ones(V)))[1]


def shapes(layers):
    weights = initial_weights(inputs=K, width=W, outputs=V, layers=layers, rng=np.random.default_rng(0))
    return [theta.shape for theta in weights]


@pytest.mark.parametrize(("form", "layers"), [(ExactConfidence, 2), (ExactConfidence, 3), (DiagonalConfidence, 2)])
def test_the_forms_are_the_printed_matrix_and_its_diagonal(form, layers):
    Z = form.start(shapes(layers), ridge=RIDGE, width=W)
    matrix = RIDGE * np.eye(sum(rows * columns for rows, columns in shapes(layers)))
    for gradient in gradients(30, layers=layers):
        g = gradient.dense()[0]
        assert Z.squared_width(gradient)[0] == pytest.approx(g @ np.linalg.solve(matrix, g) / W, rel=1e-6)
        Z = Z.updated(gradient)
        matrix += (np.outer(g, g) if form is ExactConfidence else np.diag(g * g)) / W
        expected = np.linalg.slogdet(matrix / RIDGE)[1]
        assert Z.log_determinant == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ConfigError, match=r"at most 5000 weights \(got 12800\)"):
        ExactConfidence.start([(64, 192), (8, 64)], ridge=RIDGE, width=64)


def test_printed_gamma_by_hand_and_where_it_means_nothing():
    config = PaperModeConfig(width=4, layers=2, ridge=1.0, learning_rate=0.1, steps=2, delta=0.5)
    thin = 4 ** (-1 / 6) * np.sqrt(np.log(4))
    t, logdet = 8.0, 1.5
    first = np.sqrt(1 + thin * 16 * t ** (7 / 6))
    second = np.sqrt(logdet + thin * 16 * t ** (5 / 3) - 2 * np.log(0.5)) + 1.0
    third = (1 + t * 2) * (0.6 * np.sqrt(t) + thin * 2**3.5 * t ** (5 / 3) * (1 + np.sqrt(t)))
    assert theory_gamma(8, logdet, config) == pytest.approx(first * second + third)
    assert theory_gamma(1000, 10.0, PaperModeConfig()) > 1e6 * theory_gamma(0, 0.0, PaperModeConfig())  # explodes
    with pytest.raises(ConfigError, match=r"learning_rate of at most 0\.0156"):
        theory_gamma(1, 0.0, PaperModeConfig(learning_rate=0.1))


def paper(**settings):
    return Run(Algorithm1(Sizes.check(K, V), PaperModeConfig.model_validate({"width": 8, **settings})))


class Run:
    """A policy and its state, slot by slot."""

    def __init__(self, policy):
        self.policy, self.rng = policy, np.random.default_rng(0)
        self.state = policy.start(self.rng)

    def choose(self, mix):
        return self.policy.choose(self.state, Question(0, mix), self.rng)

    def tell(self, decision, reward):
        reward = np.asarray(reward, dtype=float)
        seen = (~np.isnan(reward)).astype(float)
        self.state = self.policy.learn(self.state, decision, reward[None], seen[None], self.rng)


def tell(policy, mix, reward):
    """One slot: lines 3 to 14."""
    decision = policy.choose(mix)
    policy.tell(decision, reward)
    return decision.blend, decision.why


def run(policy, slots, *, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(slots):
        tell(policy, rng.dirichlet(np.ones(V)), rng.random(V))
    return policy


@pytest.mark.parametrize("confidence", ["exact", "diagonal"])
@pytest.mark.parametrize("layers", [2, 3])
def test_bound_has_the_three_terms_of_the_paper(confidence, layers):
    policy = run(paper(confidence=confidence, layers=layers, rho=0.9, exploration=0.4, nu=0.6), 40)
    belief = policy.state.belief
    decision = policy.choose(MIX)
    blend, terms = decision.blend, decision.why
    value, gradient = network.value_and_gradient(belief.theta, unit(blend[None]), MIX)
    g = gradient.dense()[0]
    if confidence == "diagonal":
        squared = (g * g / np.concatenate([layer.ravel() for layer in belief.Z.diagonal])).sum() / 8
    else:
        squared = g @ belief.Z.inverse @ g / 8
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
    decision = policy.choose(MIX)
    blend, terms = decision.blend, decision.why
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
        tau = theory.expansion_threshold(before.depth[node], t, policy.policy.config)
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
