import numpy as np

from tanbr.lab.paper.fig6 import LEAVES, milliseconds, paper_router, steps_to_leaves


def test_steps_are_counted_until_there_are_enough_feasible_leaves() -> None:
    router = paper_router(4)
    state, steps = steps_to_leaves(router)
    assert 0 < steps < 1_000
    assert len(state.tree.active_leaves) >= LEAVES
    assert steps_to_leaves(router, most=3)[1] == 3


def test_quartiles_enclose_the_median() -> None:
    found = milliseconds(lambda: np.ones(1_000).sum(), repeats=5, loops=3)
    assert found["low"] <= found["median"] <= found["high"]
    assert found["fastest"] <= found["low"] + 1e-12
