"""What the next slot serves."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loop.memory import EVEN, MIX, ONE, TWO, K, Memory, Scripted, V, opened
from tanbr.errors import ConfigError
from tanbr.loop.choose import Pin, StartBlend
from tanbr.loop.slot import Choice, Phase, Reason
from tanbr.loop.turn import turn
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.router.panel import Readings
from tanbr.types import FloatArray

NOTHING = np.empty((0, 0))

# --- the start blend --------------------------------------------------------------------------------------------------


def start(kind: Any, mix: FloatArray = MIX, served: FloatArray = NOTHING, *, models: int = 1, **how: Any) -> Any:
    blends, estimates = StartBlend(kind, **how)(Readings.of(mix, None), served, models=models)
    assert estimates.shape == (len(blends), len(mix))
    return blends.tolist()


def test_every_expert_at_its_tasks_share_or_all_alike() -> None:
    assert start(None, experts=3) == [[1 / 3] * 3]
    assert start(None, experts=3, own_experts=(2, 0)) == [[0.25, 0.0, 0.75]]
    assert start("even", experts=4, own_experts=(2, 0)) == [[0.25] * 4]
    assert start("proportional", experts=3, own_experts=(1, 1)) == [[0.0, 1.0, 0.0]]
    assert start((0.5, 0.5, 0.0), experts=3) == [[0.5, 0.5, 0.0]]
    assert np.count_nonzero(start("even", experts=4, max_active=2)) == 2
    assert start(None, experts=3, own_experts=(2, 0), max_active=1) == [[0.0, 0.0, 1.0]]
    assert sorted(start(None, experts=3, own_experts=(2, 0), models=2)) == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]


def test_what_is_served_stays_while_it_is_near_enough() -> None:
    served = np.array([[0.74, 0.26]])
    assert start(None, served=served, experts=2, own_experts=(0, 1)) == served.tolist()
    assert start(None, served=EVEN[None], experts=2, own_experts=(0, 1)) == [MIX.tolist()]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("proportional", "names its experts' tasks"),
        ((0.5, 0.6), "sum to 1"),
        ((1.0,), "2 numbers"),
        ((0.5, 0.5), "at most 1"),
    ],
)
def test_a_blend_that_cannot_be_is_one_sentence(kind: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        StartBlend(kind, experts=2, max_active=1)


# --- who chooses ------------------------------------------------------------------------------------------------------


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
def test_who_chooses(explore: Any, rewarded: int | None, pin: Pin | None, phase: Phase) -> None:
    learner = opened(Memory(), Scripted(), explore=explore, patience=5)
    slot = replace(learner.slot, number=9)
    assert replace(learner, slot=slot, rewarded=rewarded, pin=pin).phase is phase


def test_a_pin_is_served_slot_after_slot() -> None:
    world, router = Memory(), Scripted()
    learner = replace(opened(world, router), pin=Pin(TWO, 7))
    for _ in range(2):
        learner = turn(learner, world)
        slot = learner.slot
        assert (slot.reason, slot.versions, slot.blend.tolist()) == (Reason.PINNED, (7,), TWO.tolist())
    assert learner.router.asked == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("models", [1, 2])
@pytest.mark.parametrize("tanbr", [True, False])
def test_a_careful_loop_waits_for_rewards_learns_and_serves_what_is_best_without_optimism(
    models: int, tanbr: bool
) -> None:
    """A router that cannot say what is best so far leaves the start blend."""
    world = Memory()
    router = Tanbr(K, V, config=RouterConfig().of_requests()) if tanbr else Scripted(np.array([ONE, TWO]))
    learner = opened(world, router, models=models, explore="careful", patience=2)
    reasons = []
    for slot in range(8):
        reasons.append(learner.slot.reason)
        if slot in (1, 2):
            for place, blend in enumerate(learner.slot.blends):
                for task in range(V):
                    world.give(slot, 0.2 + 0.6 * blend[task], 30, task=task, place=place)
        learner = turn(learner, world)
    assert reasons == [Reason.START] * 2 + [Reason.CHOSEN] * 4 + [Reason.BEST if tanbr else Reason.START] * 2
    assert learner.phase is Phase.WAITING
    if tanbr:
        now: Any = learner.router
        best = now.suggest(Readings.of(learner.forecast), models=models, optimism=0.0)
        assert learner.slot.blends.tolist() == Choice.panel(best.blends, best.estimates, Reason.BEST).blends.tolist()
