import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tanbr.errors import InputError
from tanbr.types import SlotRecord, as_blend, as_counts, as_reward, as_task_mix, to_jsonable

shares = st.lists(st.floats(0, 1, allow_subnormal=False), min_size=2, max_size=12).filter(lambda v: sum(v) > 1e-3)


@given(shares)
def test_what_is_divided_by_its_sum_is_a_mix_and_a_blend(values: list[float]) -> None:
    share = np.array(values) / sum(values)
    for checked in (as_task_mix(share, tasks=len(values)), as_blend(share, experts=len(values))):
        np.testing.assert_array_equal(checked, share)
        assert not checked.flags.writeable
        assert not np.shares_memory(checked, share)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([0.5, 0.2], "sum to 1 .got 0.7."),
        ([1.5, -0.5], "negative"),
        ([np.nan, 1.0], "finite"),
        ([np.inf, 0.0], "finite"),
        ([1.0], r"2 numbers in a row \(got shape \(1,\)\)"),
        ([[0.5, 0.5]], "shape"),
        (["a", "b"], "2 numbers"),
        (None, "2 numbers"),
        ([0.0, 0.0], "sum to 1"),
    ],
)
def test_a_bad_mix_is_refused_with_the_cause(values: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        as_task_mix(values, tasks=2)  # type: ignore[arg-type]


def test_a_blend_of_too_many_experts_is_refused() -> None:
    with pytest.raises(InputError, match=r"at most 2 experts above 0 \(got 3\)"):
        as_blend([0.2, 0.3, 0.5], experts=3, max_active=2)


def test_rewards_lie_between_0_and_1_and_counts_stand_behind_those_that_were_seen() -> None:
    for values in ([1.1, 0.0], [-0.1, 0.0], [np.inf, 0.0]):
        with pytest.raises(InputError, match=r"\[0, 1\]"):
            as_reward(values, tasks=2)
    reward = as_reward([0.5, np.nan], tasks=2)
    assert as_counts(None, reward=reward).tolist() == [1.0, 0.0]
    assert as_counts([7, 0], reward=reward).tolist() == [7.0, 0.0]
    for wrong in ([0, 0], [1, 1], [-1, 0], [np.nan, 0]):
        with pytest.raises(InputError, match="counts"):
            as_counts(wrong, reward=reward)


def test_the_total_reward_weighs_tasks_by_their_requests() -> None:
    share = np.full(3, 1 / 3)
    record = SlotRecord(0, 1, share, share, np.array([1.0, 0.0, np.nan]), np.array([3.0, 1.0, 0.0]))
    assert record.total_reward == 0.75
    empty = SlotRecord(0, 1, share, share, np.full(3, np.nan), np.zeros(3))
    assert np.isnan(empty.total_reward)


def test_json_gets_null_for_nan() -> None:
    value = {"a": np.array([1.0, np.nan]), "b": (np.int64(2), float("nan")), 3: "text"}
    assert to_jsonable(value) == {"a": [1.0, None], "b": [2, None], "3": "text"}
