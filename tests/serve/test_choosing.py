from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tanbr.serve.admission import Choice
from tanbr.serve.choosing import Choosing, Pin
from tanbr.serve.config import ServeConfig
from tanbr.serve.journal import OpenSlot, Turn
from tanbr.serve.records import Phase, Reason
from tanbr.types import Decision

MIX, EVEN, ONE = np.array([0.5, 0.5]), np.array([0.5, 0.5]), np.array([1.0, 0.0])
ENDED = OpenSlot(9, (3,), MIX, EVEN[None], None, Reason.START)
KEPT = Choice.one(EVEN, Reason.KEPT, version=3)
ROUTER: Any = SimpleNamespace(ask=lambda mix: Decision(1, mix, ONE))
GOOD = {"good": True, "version": 2, "blend": ONE, "sums": np.array([8.0, 8.0]), "counts": np.array([10.0, 10.0])}


def choosing(explore: str = "careful", versions: tuple[dict[str, Any], ...] = ()) -> Choosing:
    store: Any = SimpleNamespace(versions=lambda: list(versions))
    start: Any = lambda mix, live: EVEN  # noqa: E731
    return Choosing(start, store, ServeConfig.model_validate({"explore": explore, "patience": 5}))


@pytest.mark.parametrize(
    ("explore", "rewarded", "pin", "phase"),
    [
        ("careful", None, None, Phase.WAITING),
        ("careful", 9, None, Phase.LEARNING),
        ("careful", 2, None, Phase.WAITING),  # too long ago
        ("never", 9, None, Phase.FIXED),
        ("always", None, None, Phase.LEARNING),
        ("always", 9, Pin(ONE, 2), Phase.PINNED),
    ],
)
def test_who_chooses(explore, rewarded, pin, phase) -> None:
    assert choosing(explore).phase(Turn(ENDED, 0, rewarded=rewarded), pin) is phase


def test_a_pin_wins_and_without_rewards_the_start_blend_is_served() -> None:
    turn = Turn(ENDED, 0)
    pinned = choosing("always").choose(turn, ROUTER, MIX, KEPT, Pin(ONE, 2))
    assert (pinned.reason, pinned.version) == (Reason.PINNED, 2)
    start = choosing().choose(turn, ROUTER, MIX, KEPT, None)
    assert (start.reason, start.version) == (Reason.START, 3)  # it answers already


def test_when_rewards_stop_the_best_known_blend_is_served() -> None:
    best = choosing(versions=(GOOD,)).choose(Turn(ENDED, 0, rewarded=2), ROUTER, MIX, KEPT, None)
    assert (best.reason, best.version) == (Reason.BEST, 2)


def test_the_router_chooses_while_rewards_come() -> None:
    chosen = choosing().choose(Turn(ENDED, 0, rewarded=9), ROUTER, MIX, KEPT, None)
    assert chosen.reason is Reason.CHOSEN
    assert chosen.decision is not None
    np.testing.assert_array_equal(chosen.blend, ONE)
