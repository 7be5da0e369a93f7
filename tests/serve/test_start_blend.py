import numpy as np
import pytest

from tanbr.errors import ConfigError
from tanbr.serve.start_blend import StartBlend
from tanbr.serve.survey import Survey

MIX = np.array([0.75, 0.25])


def test_every_expert_at_its_tasks_share_or_all_alike() -> None:
    assert StartBlend(None, experts=3)(MIX).tolist() == [1 / 3] * 3
    assert StartBlend(None, experts=3, own_experts=(2, 0))(MIX).tolist() == [0.25, 0.0, 0.75]
    assert StartBlend("even", experts=4, own_experts=(2, 0))(MIX).tolist() == [0.25] * 4
    assert StartBlend("proportional", experts=3, own_experts=(1, 1))(MIX).tolist() == [0.0, 1.0, 0.0]
    assert StartBlend((0.5, 0.5, 0.0), experts=3)(MIX).tolist() == [0.5, 0.5, 0.0]
    assert np.count_nonzero(StartBlend("even", experts=4, max_active=2)(MIX)) == 2
    assert StartBlend(None, experts=3, own_experts=(2, 0), max_active=1)(MIX).tolist() == [0.0, 0.0, 1.0]


def test_a_survey_says_what_is_best_for_the_mix_unless_a_blend_is_named() -> None:
    known = Survey(np.eye(2), np.array([[0.9, 0.1], [0.2, 0.8]]), np.zeros((2, 2)))
    start = StartBlend(None, experts=2, survey=known)
    assert start(MIX).tolist() == [1.0, 0.0]
    assert start(MIX[::-1]).tolist() == [0.0, 1.0]
    assert StartBlend("even", experts=2, survey=known)(MIX).tolist() == [0.5, 0.5]


def test_what_is_served_stays_while_it_is_near_enough() -> None:
    start = StartBlend(None, experts=2, own_experts=(0, 1))
    served = np.array([0.74, 0.26])
    assert start(MIX, served) is served
    assert start(MIX, np.array([0.5, 0.5])).tolist() == MIX.tolist()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("proportional", "names its experts' tasks"),
        ((0.5, 0.6), "sum to 1"),
        ((1.0,), "2 numbers"),
        ((0.5, 0.5), "at most 1"),
    ],
)
def test_a_blend_that_cannot_be_is_one_sentence(kind: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        StartBlend(kind, experts=2, max_active=1)  # type: ignore[arg-type]
