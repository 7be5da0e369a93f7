import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.router.simplex import corner_point, is_feasible, proportional_point
from tanbr.router.tree import PartitionTree


def grown(experts, seed, expansions, *, interior=False):
    rng, point = np.random.default_rng(seed), proportional_point if interior else corner_point
    tree = PartitionTree.root(experts, point=point)
    for _ in range(expansions):
        tree = tree.expanded(int(rng.choice(tree.active_leaves)), rng=rng, point=point)
    return tree


@given(st.integers(2, 6), st.integers(0, 1000), st.integers(0, 25), st.booleans())
@settings(max_examples=30)
def test_leaves_cover_the_simplex_without_overlap(experts, seed, expansions, interior):
    tree = grown(experts, seed, expansions, interior=interior)
    points = np.random.default_rng(seed).dirichlet(np.ones(experts), size=50)
    inside = ((points[:, None] >= tree.low[tree.leaf]) & (points[:, None] < tree.high[tree.leaf])).all(axis=2)
    assert (inside.sum(axis=1) == 1).all()  # almost surely no point lies on a boundary
    assert not inside[:, ~tree.active[tree.leaf]].any()


def test_children_halve_one_side_of_their_parent():
    tree = grown(4, 1, 12)
    volume = np.prod(tree.high - tree.low, axis=1)
    assert np.allclose(volume[1:], volume[tree.parent[1:]] / 2)
    changed = (tree.low[1:] != tree.low[tree.parent[1:]]) | (tree.high[1:] != tree.high[tree.parent[1:]])
    assert (changed.sum(axis=1) == 1).all()


def test_inactive_exactly_when_infeasible():
    tree = grown(3, 2, 30)
    assert not tree.active.all()
    assert tree.active.tolist() == [is_feasible(*box) for box in zip(tree.low, tree.high, strict=True)]


def test_every_dimension_is_split_sooner_or_later():
    tree = grown(3, 0, 40)
    assert ((tree.high - tree.low).min(axis=0) < 1).all()


def test_expanding_leaves_the_smaller_tree_as_it_was():
    small = grown(3, 0, 4)
    node, before = int(small.active_leaves[0]), small.leaf.copy()
    large = small.visited(node).expanded(node, rng=np.random.default_rng(0), point=corner_point)
    assert np.array_equal(small.leaf, before)
    assert not small.visits.any()
    assert len(large) == len(small) + 2
    assert not large.leaf[node]
    assert large.visits[node] == 1
