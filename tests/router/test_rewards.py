import numpy as np
from tanbr.router.rewards import RewardTable

ONE, TWO, THREE = np.eye(3)


def told(*rows, limit: int = 8) -> RewardTable:
    table = RewardTable.empty(experts=3, tasks=2)
    for x, reward, counts in rows:
        table = table.added(x, np.array(reward), np.array(counts), limit=limit)
    return table


def test_rewards_of_one_blend_are_pooled_by_their_counts() -> None:
    table = told((ONE, [0.0, 0.25], [1.0, 2.0]), (TWO, [1.0, 1.0], [1.0, 1.0]), (ONE, [1.0, 0.75], [3.0, 2.0]))
    assert table.inputs.tolist() == [ONE.tolist(), TWO.tolist()]
    assert table.target.tolist() == [[0.75, 0.5], [1.0, 1.0]]
    assert table.weight.tolist() == [[4.0, 4.0], [1.0, 1.0]]
    assert table.total == 5.0


def test_an_unseen_task_changes_nothing() -> None:
    table = told((ONE, [0.5, np.nan], [2.0, 0.0]), (ONE, [np.nan, 0.25], [0.0, 4.0]))
    assert table.target.tolist() == [[0.5, 0.25]]
    assert table.weight.tolist() == [[2.0, 4.0]]


def test_a_full_table_forgets_what_was_told_first() -> None:
    table = told(
        (ONE, [0.5, 0.5], [1.0, 1.0]), (TWO, [0.25, 0.25], [1.0, 1.0]), (THREE, [1.0, 1.0], [2.0, 2.0]), limit=2
    )
    assert table.inputs.tolist() == [THREE.tolist(), TWO.tolist()]
    assert table.target.tolist() == [[1.0, 1.0], [0.25, 0.25]]
    assert table.order.tolist() == [1, 0]
    assert table.total == 3.0


def test_a_table_is_a_value() -> None:
    before = told((ONE, [0.5, 0.5], [1.0, 1.0]))
    before.added(ONE, np.ones(2), np.ones(2), limit=8)
    assert before.target.tolist() == [[0.5, 0.5]]
