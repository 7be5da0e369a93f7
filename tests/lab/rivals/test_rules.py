import numpy as np
import pytest

from tanbr.lab.rivals import BestKnown, FixedBlend, Proportional


def test_best_known_follows_the_mix():
    router = BestKnown(3, 2, blends=np.eye(3), rewards=[[0.9, 0.1], [0.1, 0.9], [0.6, 0.6]])
    assert router.ask([1, 0]).blend.argmax() == 0
    assert router.ask([0, 1]).blend.argmax() == 1
    assert router.ask([0.5, 0.5]).blend.argmax() == 2


def test_best_known_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="finite"):
        BestKnown(2, 1, blends=np.eye(2), rewards=[[0.1], [np.nan]])
    with pytest.raises(ValueError, match="must be"):
        BestKnown(2, 1, blends=np.eye(3), rewards=np.zeros((3, 1)))
    with pytest.raises(ValueError, match="at most 1"):
        BestKnown(2, 1, blends=[[0.5, 0.5]], rewards=[[0.1]], max_active=1)


def test_fixed_is_even_unless_told():
    assert np.allclose(FixedBlend(4, 2).ask([0.5, 0.5]).blend, 0.25)
    assert np.allclose(FixedBlend(4, 2, max_active=2).ask([0.5, 0.5]).blend, [0.5, 0.5, 0, 0])
    assert np.allclose(FixedBlend(2, 2, blend=[0.9, 0.1]).ask([0.5, 0.5]).blend, [0.9, 0.1])


def test_proportional_gives_every_expert_its_tasks_share():
    assert np.allclose(Proportional(3, 2, own=[2, 0]).ask([0.7, 0.3]).blend, [0.3, 0, 0.7])
    assert np.allclose(Proportional(2, 3).ask([0.5, 0.2, 0.3]).blend, [0.8, 0.2])  # two tasks, one expert
    with pytest.raises(ValueError, match="own must name one of 2 experts"):
        Proportional(2, 2, own=[0, 2])
