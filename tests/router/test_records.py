import numpy as np
from tanbr.router.records import Open, Told, lone_root

from tanbr.types import Decision, PanelDecision, Terms

MIX = np.array([0.5, 0.5])
BLENDS = np.array([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
WHY = (Terms(mean=0.5, uncertainty=0.1), Terms(mean=0.25, uncertainty=0.2))


def test_a_single_blend_has_one_reason_and_a_panel_one_for_each() -> None:
    single, panel = Decision(1, MIX, BLENDS[0]), PanelDecision(2, MIX, BLENDS, np.zeros((2, 2)))
    assert Open(single, WHY[:1]).terms is WHY[0]
    assert Open(single, WHY[:1]).blends.tolist() == [BLENDS[0].tolist()]
    assert Open(panel, WHY).terms == WHY
    assert Open(panel, WHY).blends.tolist() == BLENDS.tolist()
    assert Told(panel, np.zeros((2, 2)), np.ones((2, 2)), WHY).terms == WHY


def test_the_tree_of_a_router_without_one_is_the_even_blend() -> None:
    tree = lone_root(4, 2)
    assert tree.parent.tolist() == [-1]
    assert tree.leaf.tolist() == [True]
    assert tree.value.shape == (1, 2)
    assert np.isnan(tree.value).all()
