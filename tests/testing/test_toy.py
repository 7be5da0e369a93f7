import numpy as np
from tanbr.testing.toy import EVEN, K, V, play, play_panels, toy_reward

from tanbr.router import Tanbr

BEST = np.array([0.75, 0.25, 0, 0, 0])


def test_one_blend_is_best_for_every_task() -> None:
    others = np.random.default_rng(0).dirichlet(np.ones(K), 50)
    assert all((toy_reward(BEST) > toy_reward(blend)).all() for blend in others)
    assert toy_reward(BEST).tolist() == [0.9] * V
    assert EVEN.sum() == 1


def test_plays_serve_what_the_router_says() -> None:
    blends = play(Tanbr(K, V, seed=0), 6, unseen=0.5)
    assert blends.shape == (6, K)
    np.testing.assert_allclose(blends.sum(axis=1), 1, atol=K * np.finfo(float).eps)
    assert len(play_panels(Tanbr(K, V, seed=0), 4)) == 2 + 3 + 2 + 3
