"""Hold-back: the gain that it finds is the true one, whatever drifts; a coin is the same after a restart."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loop.memory import EVEN, ONE, Memory, Scripted, opened
from tanbr.loop.holdback import LEAST, SETTLED, WINDOW, Toss, gain_of, tossed
from tanbr.loop.learner import Learner
from tanbr.loop.slot import Phase, Reason
from tanbr.loop.turn import turn

V, REQUESTS = 3, 64


def simulated(
    seed: int, slots: int, *, chance: float = 0.05, gain: float = 0.04, drift: float = 0.1
) -> tuple[list[Toss], float]:
    """Slots whose mixes are drawn and whose rewards drift, held back less often in the second half; the true gain."""
    rng = np.random.default_rng(seed)
    level, gains = rng.uniform(0.3, 0.6, V), rng.normal(gain, 0.04, V)
    mixes = rng.dirichlet(np.full(V, 0.5), slots)
    found = []
    for slot, mix in enumerate(mixes):
        coin = chance if slot < slots / 2 else 0.4 * chance
        held = bool(rng.random() < coin)
        counts = rng.multinomial(REQUESTS, mix)
        rewards = rng.binomial(counts, level + drift * np.sin(slot / 40) + gains * (not held)) / np.maximum(counts, 1)
        found.append(Toss(slot, coin, held, mix, np.where(counts > 0, rewards, np.nan), counts.astype(float)))
    return found, float(mixes.mean(axis=0) @ gains)


def test_the_gain_is_unbiased_and_its_interval_holds_the_truth() -> None:
    runs = [(gain_of(tosses), true) for tosses, true in (simulated(seed, 300) for seed in range(300))]
    found = [(gain, true) for gain, true in runs if gain is not None]
    assert len(found) > 295
    misses = np.array([gain.total - true for gain, true in found])
    assert abs(misses.mean()) < 3 * misses.std() / np.sqrt(len(found))
    covered = np.mean([abs(gain.total - true) <= gain.error for gain, true in found])
    assert 0.92 <= covered <= 0.99


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 60), st.floats(0.05, 0.95))
def test_any_slots_give_a_finite_gain_or_none(seed: int, slots: int, chance: float) -> None:
    tosses, _ = simulated(seed, slots, chance=chance, gain=0.0)
    found = gain_of(tosses)
    held = sum(one.held for one in tosses)
    assert (found is None) == (min(held, slots - held) < 2)
    if found is not None:
        assert np.isfinite([found.total, found.error]).all()
        assert found.error > 0
        assert -1 <= found.total <= 1
        assert (np.isnan(found.tasks) == np.isnan(found.errors)).all()
        assert gain_of(tosses[::-1]).total == found.total  # type: ignore[union-attr]


def test_equal_rewards_still_leave_an_interval() -> None:
    tosses = [Toss(n, 0.5, n % 2 == 0, np.ones(1), np.ones(1), np.full(1, 8.0)) for n in range(8)]
    found = gain_of(tosses)
    assert found is not None
    assert found.total == 0
    assert found.error > 0
    assert not found.harms
    assert not found.pays


def test_a_coin_is_of_the_seed_and_the_slot_alone() -> None:
    coins = [tossed(3, slot, 0.05) for slot in range(4000)]
    assert coins == [tossed(3, slot, 0.05) for slot in range(4000)]
    assert 0.04 < np.mean(coins) < 0.06
    assert coins != [tossed(4, slot, 0.05) for slot in range(4000)]
    assert not any(tossed(0, slot, 0.0) for slot in range(100))
    assert all(tossed(0, slot, 1.0) for slot in range(100))


def lived(slots: int, *, learned: float, start: float, chance: float = 0.3) -> tuple[list[Learner], Memory]:
    """Let a router serve one expert, held back with the even blend; each slot has 32 rewards of what it serves."""
    world = Memory()
    learners = [opened(world, Scripted(ONE), hold_back=chance)]
    for number in range(slots):
        slot = learners[-1].slot
        reward = start if np.array_equal(slot.blend, EVEN) else learned
        for task in (0, 1):
            world.give(number, 0.0, round(16 * (1 - reward)), task=task)
            world.give(number, 1.0, round(16 * reward), task=task)
        learners.append(turn(learners[-1], world))
    return learners, world


def test_slots_are_held_back_by_their_coins_and_the_chance_is_written_down() -> None:
    learners, world = lived(60, learned=0.75, start=0.5)
    slots = [learner.slot for learner in learners]
    assert [slot.reason is Reason.HELD_BACK for slot in slots] == [
        tossed(0, one.number, one.chance or 0) for one in slots
    ]
    assert all(np.array_equal(slot.blend, EVEN if slot.reason is Reason.HELD_BACK else ONE) for slot in slots)
    assert learners[-1].gain is not None
    assert learners[-1].gain.total == pytest.approx(0.25, abs=0.02)
    assert learners[-1].gain.pays
    assert {slot.chance for slot in slots} == {0.3, SETTLED * 0.3}
    assert len(learners[-1].router.warm) == sum(slot.reason is Reason.HELD_BACK for slot in slots[:-1])  # type: ignore[attr-defined]
    assert world.alarms == []


def test_a_router_that_costs_reward_is_left_for_the_start_blend_until_the_slots_are_old() -> None:
    learners, world = lived(90, learned=0.25, start=0.75)
    phases = [learner.phase for learner in learners]
    first = phases.index(Phase.HARMED)
    assert set(phases[first:]) == {Phase.HARMED}
    assert all(learner.slot.reason is Reason.START for learner in learners[first:])
    assert learners[first].gain is not None
    assert learners[first].gain.held >= LEAST
    assert world.alarms == [f"{learners[first].gain}: the start blend is served again"]
    late = learners[-1]
    for _ in range(WINDOW):
        late = turn(late, world)
    assert late.phase is Phase.LEARNING
