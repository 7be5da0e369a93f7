import numpy as np
import pytest

from tanbr.errors import InputError
from tanbr.lab.rivals.search import Table, search
from tanbr.lab.rivals.vector_gp import NOISE, VARIANCE, covariance
from tanbr.router.contract import toy_reward

K, V = 4, 2
CORNERS = np.vstack([np.eye(K), np.full(K, 1 / K)])
BEST = np.array([[0.7, 0.3, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]])  # a task's best blend


def reward(blend: np.ndarray) -> np.ndarray:
    return 0.1 + 0.8 * np.exp(-2.0 * ((blend - BEST) ** 2).sum(axis=1))


def start() -> Table:
    return Table(CORNERS, np.array([reward(x) for x in CORNERS]))


def test_expectation_by_hand() -> None:
    table = Table(np.eye(2), np.array([[0.2], [0.6]]))
    near = float(covariance(np.eye(2)[:1], np.eye(2)[1:])[0, 0])
    total = VARIANCE + NOISE**2
    weight = (VARIANCE - near) / (total - near)  # of the deviation from the centre, 0.4
    mean, deviation = table.expected(np.eye(2))
    assert mean[:, 0] == pytest.approx([0.4 - 0.2 * weight, 0.4 + 0.2 * weight])
    explained = (VARIANCE**2 * total - 2 * VARIANCE * near**2 + near**2 * total) / (total**2 - near**2)
    assert deviation == pytest.approx([np.sqrt(VARIANCE - explained)] * 2)
    assert table.best_for([1.0]).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(("mix", "best"), [([1, 0], 0), ([0, 1], 1)], ids=["first task", "second task"])
def test_it_finds_the_best_fixed_blend(mix, best) -> None:
    found = search(reward, start(), mixes=mix, evaluations=40, rng=np.random.default_rng(0))
    assert len(found.blends) == len(CORNERS) + 40
    assert np.abs(found.best_for(mix) - BEST[best]).max() < 0.11
    assert reward(found.best_for(mix))[best] > 0.88 > start().rewards[:, best].max()


def test_mixes_take_turns_in_one_table() -> None:
    mixes = np.array([[0.9, 0.1], [0.1, 0.9]])
    found = search(reward, start(), mixes=mixes, evaluations=60, rng=np.random.default_rng(0))
    np.testing.assert_allclose(found.rewards, [reward(x) for x in found.blends])  # measured, all of them
    best = np.array([reward(found.best_for(mix)) @ mix for mix in mixes])
    fixed = (found.rewards @ [0.5, 0.5]).max()
    assert (best > 0.8).all()
    assert best.mean() > fixed + 0.1


def test_no_blend_is_tried_twice_nor_with_too_many_experts() -> None:
    tried = []
    rng = np.random.default_rng(1)
    search(
        lambda x: (tried.append(x), toy_reward(x, V))[1],
        start(),
        mixes=[0.5, 0.5],
        evaluations=25,
        rng=rng,
        max_active=2,
    )
    assert all(np.count_nonzero(x) <= 2 for x in tried)
    everything = np.vstack([CORNERS, tried])
    assert len(np.unique(everything.round(6), axis=0)) == len(everything)


def test_what_is_no_table_is_refused() -> None:
    for blends, rewards in (
        (np.eye(2), np.zeros((3, 1))),
        (np.eye(2), np.full((2, 1), np.nan)),
        (np.eye(2), np.zeros(2)),
    ):
        with pytest.raises(InputError, match="a table needs"):
            Table(blends, rewards)
    with pytest.raises(InputError, match="task mix"):
        search(reward, start(), mixes=[1.0], evaluations=1, rng=np.random.default_rng(0))
    with pytest.raises(InputError, match="reward"):
        search(lambda _: np.array([2.0, 0.0]), start(), mixes=[1, 0], evaluations=1, rng=np.random.default_rng(0))
