import numpy as np
import pytest
from tanbr.router.records import Open, Told
from tanbr.router.slots import pack, unpack

from tanbr.errors import StateError
from tanbr.types import Decision, PanelDecision, Terms

MIX = np.array([0.75, 0.25])
ONE, TWO = np.eye(3)[:2]
WHY = Terms(
    mean=0.5,
    granularity=0.125,
    uncertainty=0.25,
    node=3,
    depth=2,
    candidates=9,
    baseline=0.25,
    least_gain=-0.5,
    balance=0.75,
    evidence=1.5,
    suspect=1,
    changes=2,
)
ESTIMATES = np.array([[0.5, 0.25], [0.25, 0.5]])
SINGLE = Told(Decision(7, MIX, ONE), np.array([1.0, np.nan]), np.array([2.0, 0.0]), (WHY,))
PANEL = Told(PanelDecision(8, MIX, np.stack([ONE, TWO]), ESTIMATES), ESTIMATES / 2, np.ones((2, 2)), (WHY, WHY))
WAITING = Open(Decision(9, MIX, TWO), (WHY,))


def test_what_is_packed_comes_back_in_order() -> None:
    told, waiting = unpack(pack([SINGLE, PANEL], [WAITING], tasks=2), experts=3, tasks=2)
    assert [slot.decision.id for slot in told] == [7, 8]
    assert [slot.decision.id for slot in waiting] == [9]
    single, panel = told
    np.testing.assert_array_equal(single.reward, SINGLE.reward)
    np.testing.assert_array_equal(panel.reward, PANEL.reward)
    assert isinstance(panel.decision, PanelDecision)
    np.testing.assert_array_equal(panel.decision.estimates, ESTIMATES)
    assert single.terms == WHY
    assert waiting[0].blends.tolist() == [TWO.tolist()]
    assert not single.reward.flags.writeable


def test_nothing_packs_and_comes_back() -> None:
    assert unpack(pack([], [], tasks=2), experts=3, tasks=2) == ([], [])


def test_states_from_before_panels_are_read() -> None:
    arrays = {
        name: array
        for name, array in pack([SINGLE], [], tasks=2).items()
        if name not in ("slot.estimate", "slot.model", "slot.account", "slot.change")
    }
    told, _ = unpack(arrays, experts=3, tasks=2)
    assert isinstance(told[0].decision, Decision)
    assert (told[0].why[0].mean, told[0].why[0].balance, told[0].why[0].suspect) == (0.5, 0.0, -1)


def test_what_does_not_fit_is_refused() -> None:
    arrays = pack([PANEL], [], tasks=2)
    with pytest.raises(StateError, match=r"'slot.blend' must have 4 columns \(got shape \(2, 3\)\)"):
        unpack(arrays, experts=4, tasks=2)
    with pytest.raises(StateError, match=r"numbered from 0 \(got \[0, 2\]\)"):
        unpack(arrays | {"slot.model": np.array([0, 2])}, experts=3, tasks=2)
