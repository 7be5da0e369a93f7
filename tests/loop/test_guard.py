"""Probes before a blend is served, live rewards while it is."""

import json

import numpy as np
import pytest

from tanbr.loop.guard import HEARD, Guard, Probes, Refused
from tanbr.loop.rewards import Given, Trust
from tanbr.types import FloatArray

V = 2
EASY, HARD = np.eye(V)
EVEN = np.full(V, 0.5)
MARGIN = 0.1
HONEST = [f"c{n}" for n in range(8)]
OF = np.repeat(np.arange(V), 16)  # the tasks of 32 probes


def probes(first: float, second: float, digest: str = "these") -> Probes:
    """Probes of which a blend answers these shares rightly, task by task."""
    rewards = np.concatenate([np.arange(16) < 16 * share for share in (first, second)]).astype(float)
    return Probes(rewards, OF, digest)


# --- probes -----------------------------------------------------------------------------------------------------------


def test_a_blend_is_judged_for_the_mix_at_hand() -> None:
    guard = Guard.empty(V).probed(1, probes(0.75, 1.0), EVEN, margin=MARGIN)
    with pytest.raises(Refused, match="less than") as refused:
        guard.probed(2, probes(1.0, 0.0), EVEN, margin=MARGIN)  # good at one task alone
    assert (refused.value.reward.tolist(), refused.value.counts.tolist()) == ([1.0, 0.0], [16.0, 16.0])
    after = guard.probed(2, probes(1.0, 0.0), EASY, margin=MARGIN)  # where all is that task it is best
    assert list(after.good) == [1, 2]
    assert list(guard.probed(2, probes(0.0, 0.0), EVEN, margin=np.inf).good) == [1, 2]  # what is fallen back to
    assert list(guard.probed(2, probes(0.0, 0.0, "others"), EVEN, margin=MARGIN).good) == [2]  # compared with none
    assert list(guard.good) == [1]  # nothing changed here


def test_nan_is_refused_with_and_without_probes_and_whoever_wants_the_blend() -> None:
    for asked in (Probes(None, OF), Probes(None, np.zeros(0, dtype=np.intp))):
        for margin in (MARGIN, np.inf):
            with pytest.raises(Refused, match="NaN") as refused:
                Guard.empty(V).probed(1, asked, EASY, margin=margin)
            assert np.nanmax(refused.value.reward) == 0
            assert refused.value.counts.sum() > 0
    guard = Guard.empty(V)
    assert guard.probed(1, Probes(np.zeros(0), np.zeros(0, dtype=np.intp)), EASY, margin=MARGIN) is guard


# --- live rewards -----------------------------------------------------------------------------------------------------


def seen(guard: Guard, version: int, share: FloatArray, reward: float, *clients: str) -> Guard:
    for client in clients or ("",):
        guard = guard.seen(version, share, reward, client)
    return guard


def opened(guard: Guard, *versions: int, bad: tuple[int, ...] = ()) -> Guard:
    return guard.opened(versions, bad=bad, keep=5)


def judged(guard: Guard, trust: Trust | None = None) -> tuple[int, str] | None:
    return guard.judged(trust or Trust(), margin=MARGIN)


@pytest.mark.parametrize(
    ("share", "reward", "count", "said"),
    [
        (EASY, 0.4, 10, None),  # too few to judge
        (HARD, 0.3, 40, None),  # worse on average, but no worse at the task that came
        (EASY, 0.85, 40, None),  # within the margin
        (EASY, 0.4, 40, "0.500"),
    ],
)
def test_live_rewards_that_fall_beyond_chance_are_noticed_and_a_change_of_mix_is_not(
    share: FloatArray, reward: float, count: int, said: str | None
) -> None:
    guard = Guard.empty(V)
    for _ in range(60):
        guard = seen(seen(guard, 1, EASY, 0.9), 1, HARD, 0.3)
    guard = opened(guard, 2, 3)
    for _ in range(count):
        guard = seen(seen(guard, 2, share, reward), 3, EASY, 0.9)  # beside it a model that is as good as ever
    verdict = judged(guard)
    assert (verdict is None) == (said is None)
    if verdict is not None and said is not None:
        assert (verdict[0], said in verdict[1]) == (2, True)


def of_nine() -> Guard:
    """A guard that has seen eight clients content with a version, which another one follows."""
    return opened(seen(Guard.empty(V), 1, EASY, 0.9, *HONEST * 10), 2)


@pytest.mark.parametrize("first", [True, False])
def test_one_stranger_rolls_back_nothing_however_loud_and_early(first: bool) -> None:
    guard = of_nine()
    for _ in range(8):  # slots: a version may serve many
        guard = guard if first else seen(guard, 2, EASY, 0.9, *HONEST * 8)
        guard = seen(guard, 2, EASY, 0.0, *["liar"] * 64)
        assert judged(guard) is None
        guard = seen(guard, 2, EASY, 0.9, *HONEST * 8) if first else guard
        assert judged(guard) is None
        assert guard.reward(2) >= 0.8 * 0.9 - 1e-9  # moved by the liar's share, a fifth
        guard = Guard.from_json(opened(guard, 2).to_json(), tasks=V)  # a restart makes no difference


def test_what_several_clients_see_fall_is_rolled_back_and_what_the_only_one_sees() -> None:
    assert judged(seen(of_nine(), 2, EASY, 0.4, *HONEST * 8)) is not None

    def of_one(reward: float) -> Guard:
        return seen(opened(seen(Guard.empty(V), 1, EASY, 0.9, *["app"] * 64), 2), 2, EASY, reward, *["app"] * 64)

    assert judged(of_one(0.4)) is None  # nobody knows it yet
    known = Trust().learned([Given(0, 0, 0, "feedback", 0, 0.9, None, "app")], EASY)
    assert judged(of_one(0.4), known) is not None  # the server's only client: its own application, say
    assert judged(seen(of_one(0.9), 2, EASY, 0.0, *["stranger"] * 64), known) is None


def test_versions_that_proved_bad_are_no_measure_for_others() -> None:
    guard = seen(seen(Guard.empty(V), 1, EASY, 0.9, *HONEST * 8), 2, EASY, 0.1, *HONEST * 8)
    guard = guard.probed(2, probes(0.0, 0.0), EVEN, margin=np.inf)
    after = opened(guard, 3, bad=(2,))
    assert (dict(after.good), dict(after.live)) == ({}, {})
    np.testing.assert_allclose(after.known[:, 0], [0.9 * 64, 64])  # the rewards of version 1 alone


def test_the_state_stays_small_whoever_speaks() -> None:
    guard = seen(Guard.empty(V), 1, EASY, 0.5, *(f"client {n}" for n in range(HEARD + 40)))
    assert len(guard.live[1]) == HEARD
    assert np.isnan(guard.reward(7))


# --- over a restart ---------------------------------------------------------------------------------------------------


def test_what_is_known_is_the_same_after_a_restart() -> None:
    guard = seen(of_nine().probed(2, probes(0.5, 1.0), EVEN, margin=MARGIN), 2, EASY, 0.4, *HONEST * 8)
    again = Guard.from_json(guard.to_json(), tasks=V)
    assert again.to_json() == guard.to_json()
    assert judged(again) == judged(guard)
    with pytest.raises(Refused):
        again.probed(3, probes(0.0, 0.0), EVEN, margin=MARGIN)


@pytest.mark.parametrize(
    "text", [None, "", "[]", "{", "{}", '{"known": 3, "live": {}, "good": {}}', json.dumps("x"), "[" * 100_000]
)
def test_what_makes_no_sense_is_a_fresh_start(text: str | None) -> None:
    assert Guard.from_json(text, tasks=V).to_json() == Guard.empty(V).to_json()
    assert not Guard.from_json(of_nine().to_json(), tasks=V + 1).known.any()
