import numpy as np
import pytest
from tanbr.router.sizes import Sizes
from tanbr.router.vertex_tree import VertexTree


def tree_of(experts=4, max_active=4, room=30, most_children=8):
    return VertexTree(Sizes(experts, 2, max_active), room=room, most_children=most_children, least=0.03)


def test_children_lie_halfway_to_the_experts_then_a_quarter():
    tree = tree_of()
    children = tree.offspring(0, np.arange(4))
    assert np.allclose(children[1], 0.5 * np.full(4, 0.25) + 0.5 * np.eye(4)[1])
    rows = tree.add(0, children)
    grandchildren = tree.offspring(int(rows[0]), np.arange(4))
    assert np.allclose(grandchildren[2], 0.75 * children[0] + 0.25 * np.eye(4)[2])


def test_all_nodes_are_feasible_for_any_number_of_active_experts():
    for most in (1, 2, 4):
        tree = tree_of(max_active=most)
        tree.add(0, tree.offspring(0, np.arange(4)))
        blends = tree.blend[tree.used]
        assert np.allclose(blends.sum(axis=1), 1.0)
        assert (np.count_nonzero(blends, axis=1) <= most).all()


def test_many_experts_give_children_towards_the_first_in_order():
    tree = tree_of(experts=20, max_active=20, most_children=3)
    children = tree.offspring(0, np.array([7, 3, 11, *range(3)]))
    assert children.argmax(axis=1).tolist() == [7, 3, 11]


def test_a_parent_without_children_is_a_leaf_again():
    tree = tree_of()
    rows = tree.add(0, tree.offspring(0, np.arange(4)))
    assert tree.leaves.tolist() == rows.tolist()
    tree.remove(rows)
    assert tree.leaves.tolist() == [0]
    assert tree.free == 29


def test_depth_ends_where_children_would_be_played_as_their_parent():
    tree = tree_of()
    node = 0
    while tree.ripe[node]:
        child = tree.offspring(node, np.arange(4))[:1]
        step = np.abs(child - tree.blend[node]).max()
        node = int(tree.add(node, child)[0])
    assert step < 0.06
    assert tree.depth.max() == pytest.approx(np.log2(0.5 / 0.03), abs=1.01)
