"""The turn of a slot, from a learner's value and a world to the next value."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loop.memory import EVEN, ONE, TWO, K, Memory, Scripted, Steady, V, opened
from tanbr.lab.corpus import taught_monitor
from tanbr.lab.tasks import tiny
from tanbr.loop.guard import Refused
from tanbr.loop.learner import Learner, observe
from tanbr.loop.rewards import Given, Tally
from tanbr.loop.slot import Choice, Reason
from tanbr.loop.turn import turn
from tanbr.router import Tanbr

BOTH = np.array([ONE, TWO])


def heard(learner: Learner) -> Any:
    return learner.router


def rewarded(world: Memory, slot: int, reward: float = 0.5, count: int = 30) -> None:
    for task in range(V):
        world.give(slot, reward, count, task=task)


# --- the steps --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("models", [1, 2])
def test_a_panel_of_one_and_of_two_turn_by_the_same_steps(models: int) -> None:
    world = Memory()
    learner = opened(world, Scripted(BOTH, BOTH[::-1] * 0.5 + 0.25), models=models)
    assert learner.slot.versions == tuple(range(1, models + 1))
    for place in range(models):
        world.give(0, 0.25 + 0.5 * place, 4, place=place, task=place)
    world.done.clear()
    after = turn(learner, world)
    assert world.done == ["mark"] + ["prepare", "probe"] * models + ["write", "commit"]
    ((number, rewards, counts),) = heard(after).told
    expected = np.full((2, V), np.nan)
    expected[0, 0], expected[1, 1] = 0.25, 0.75
    assert number == 0
    np.testing.assert_array_equal(rewards, expected[:models])
    np.testing.assert_array_equal(counts, 4 * np.eye(V)[:models])
    assert (after.slot.number, after.slot.versions) == (1, tuple(range(models + 1, 2 * models + 1)))
    assert [one.version for one in world.live] == list(after.slot.versions)
    earned = {one.number: one.sums.sum() for one in after.versions}
    assert [earned[n] for n in learner.slot.versions] == [1.0, 3.0][:models]


def test_blends_that_are_alike_are_one_model_and_told_in_the_rows_of_the_decision() -> None:
    world = Memory()
    learner = opened(world, Scripted([ONE, ONE], BOTH), models=2)
    assert learner.slot.versions == (1,)
    world.give(0, 1.0, 4)
    ((_, rewards, counts),) = heard(turn(learner, world)).told
    assert (rewards.shape, np.nansum(rewards), np.sum(counts)) == ((2, V), 1.0, 4.0)


def test_what_answers_already_is_not_merged_or_probed_again_and_a_slot_nobody_remembers_is_not_told() -> None:
    world = Memory()
    learner = opened(world, Scripted(ONE))
    world.give(77, 1.0)
    world.done.clear()
    after = turn(learner, world)
    assert world.done == ["mark", "prepare", "write", "commit"]
    assert (after.slot.versions, after.slot.number) == ((1,), 1)
    assert (heard(after).warm, after.mark) == ([], 1)


@pytest.mark.parametrize("settle", [0, 1, 2])
def test_rewards_are_told_when_they_have_settled_and_what_comes_later_is_told_apart(settle: int) -> None:
    world = Memory()
    learner = opened(world, Scripted(), rewards={"settle_slots": settle})
    world.give(0, 1.0, 4)
    for slot in range(settle + 1):
        assert heard(learner).told == []
        if slot:
            world.give(0, 0.0, 2)  # while it settles
        learner = turn(learner, world)
    ((number, rewards, counts),) = heard(learner).told
    assert (number, rewards[0, 0], counts[0, 0]) == (0, 4 / (4 + 2 * settle), 4 + 2 * settle)
    assert [slot.number for slot in learner.settling] == list(range(1, settle + 1))
    world.give(0, 0.5, 3)
    learner = turn(turn(learner, world), world)  # told once
    ((blends, rewards, counts),) = heard(learner).warm
    assert (blends.tolist(), rewards[0, 0], counts[0, 0]) == ([ONE.tolist()], 0.5, 3)
    assert [told.late for one in world.turns for told in one.told if told.slot.number == 0] == [False, True]
    (first,) = [one for one in learner.versions if one.number == 1]
    assert first.counts[0] == 7 + 2 * settle


def test_what_the_world_measured_is_told_once() -> None:
    world = Memory()
    learner = opened(world, Scripted(), rewards={"settle_slots": 0})
    world.by_itself[0] = {0: Tally(V).add("feedback", np.ones(V), np.full(V, 2.0))}
    learner = turn(learner, world)
    assert heard(learner).told[0][2].sum() == 4
    world.give(0, 1.0)  # feedback comes late: the world may still know the old tally
    learner = turn(learner, world)
    assert heard(learner).warm[0][2].sum() == 1


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["mark", "write"])
def test_a_world_that_fails_leaves_the_old_value_and_what_answers(step: str) -> None:
    world = Memory()
    learner = opened(world, Scripted())
    rewarded(world, 0)
    live, world.fails = world.live, step
    with pytest.raises(OSError, match="failed"):
        turn(learner, world)
    assert (world.live, world.prepared) == (live, [])
    assert (heard(learner).told, learner.monitor.closed) == ([], 0)  # type: ignore[attr-defined]
    world.fails = ""
    after = turn(learner, world)
    assert [counts.sum() for _, _, counts in heard(after).told] == [60]


@pytest.mark.parametrize("step", ["prepare", "probe", "ask", "tell"])
def test_a_merge_or_a_router_that_fails_leaves_what_answers_in_a_slot_of_its_own(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Memory()
    learner = opened(world, Scripted())
    rewarded(world, 0)
    world.fails, world.once = step, True
    monkeypatch.setattr(Scripted, "fails", step)
    after = turn(learner, world)
    assert (after.slot.reason, after.slot.versions, after.slot.number) == (Reason.FAILED, (1,), 1)
    assert (heard(after).told, heard(after).asked, after.mark) == ([], 1, 0)  # as if it had not been asked again
    assert [slot.number for slot in after.settling] == [0]
    assert len(world.alarms) == 1
    monkeypatch.undo()
    then = turn(after, world)
    number, _, counts = heard(then).told[0]
    assert (number, counts.sum()) == (0, 60)  # told with the next turn
    assert then.slot.reason is Reason.CHOSEN


def test_a_router_that_cannot_be_told_does_not_keep_a_bad_version_answering(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Memory()
    learner = turn(opened(world, Scripted()), world)
    monkeypatch.setattr(Scripted, "fails", "tell")
    back = learner.dismissing(2, "a test says so")
    assert back is not None
    after = turn(learner, world, forced=back, bad=(2,), worthless=True)
    assert (after.slot.reason, after.slot.versions) == (Reason.ROLLED_BACK, (1,))
    assert [one.number for one in after.good] == [1]


@pytest.mark.parametrize("then", ["", "write"])
def test_a_commit_that_fails_gives_what_is_whole_a_slot_of_its_own(then: str) -> None:
    world = Memory()
    learner = opened(world, Scripted())
    commit = world.commit

    def failing(prepared: Any, learner: Any) -> None:
        if any(one.changed for one in prepared):
            world.prepared.clear()
            world.fails = then
            raise OSError("no room")
        commit(prepared, learner)

    world.commit = failing  # type: ignore[method-assign]
    after = turn(learner, world)
    assert [one.version for one in world.live] == [1]
    assert "merge version 2 cannot be served" in world.alarms[0]
    if then:  # and now the disk is full: slot 1 was written down, so it is the open one
        assert after.slot.number == 1
    else:
        assert (after.slot.number, after.slot.versions, after.slot.reason) == (2, (1,), Reason.FAILED)
    assert [one.opened.number for one in world.turns] == list(range(len(world.turns)))


def test_the_first_slot_needs_a_blend_that_can_be_served() -> None:
    with pytest.raises(Refused, match="NaN"):
        opened(Memory(nan=(ONE,)), Scripted())


# --- what is refused, declined, dismissed -----------------------------------------------------------------------------


def test_a_refused_panel_is_declined_its_probes_teach_and_the_router_chooses_again() -> None:
    world = Memory(bad=(TWO,))
    learner = opened(world, Scripted([ONE, EVEN], BOTH, BOTH, [EVEN, ONE]), models=2)
    after = turn(learner, world)
    assert (heard(after).declined, after.slot.reason) == ([1, 2], Reason.CHOSEN)
    assert after.slot.blends.tolist() == [EVEN.tolist(), ONE.tolist()]
    blends, rewards, counts = heard(after).warm[0]  # of the bad model alone
    assert (blends.tolist(), rewards.tolist()) == ([TWO.tolist()], [pytest.approx([0.1, 0.1])])
    assert counts.sum() == 32


def test_after_its_tries_what_answers_stays_and_nothing_prepared_is_left() -> None:
    world = Memory(bad=(TWO,))
    learner = opened(world, Scripted(ONE, TWO, TWO, TWO))
    after = turn(learner, world)
    assert (after.slot.versions, after.slot.reason) == ((1,), Reason.KEPT)
    assert after.slot.note.startswith("refused: its probes earn 0.800 less")
    assert (heard(after).declined, heard(after).asked) == ([1, 2, 3], 4)
    assert [one.version for one in world.live] == [1]


def test_what_an_operator_wants_is_not_compared_but_nan_is_refused_aloud() -> None:
    world = Memory(bad=(TWO,))
    learner = opened(world, Scripted(ONE))
    forced = Choice.one(TWO, V, Reason.PINNED)
    assert turn(learner, world, forced=forced).slot.blend.tolist() == TWO.tolist()
    world.nan = (EVEN,)
    after = turn(learner, world, forced=Choice.one(EVEN, V, Reason.PINNED))
    assert after.slot.reason is Reason.FAILED
    assert "NaN" in world.alarms[-1]


@pytest.mark.parametrize("worthless", [False, True])
@pytest.mark.parametrize("models", [1, 2])
def test_a_slot_with_a_bad_version_is_told_at_once_with_zeros_if_it_was_worthless(models: int, worthless: bool) -> None:
    world = Memory()
    learner = turn(opened(world, Scripted(BOTH, BOTH[::-1] * 0.5 + 0.25), models=models), world)
    learner = turn(learner, world)  # the last slot is not told yet
    world = Memory(live=world.live, issued=world.issued)
    kept = heard(learner).told
    bad = learner.slot.versions[0]
    back = learner.dismissing(bad, "why")
    assert back is not None
    assert len(back.versions) == 1
    after = turn(learner, world, forced=back, bad=(bad,), worthless=worthless)
    _, rewards, counts = heard(after).told[-1]
    assert len(heard(after).told) == len(kept) + 1
    assert counts.sum() == (20 if worthless else 0)  # as many as the guard needs to judge
    assert np.nansum(rewards) == 0
    assert bad not in [one.number for one in after.good]
    assert after.slot.reason is Reason.ROLLED_BACK


def test_the_last_good_version_is_kept_whatever_else_is_forgotten() -> None:
    world, rng = Memory(), np.random.default_rng(0)
    learner = opened(world, Scripted(*rng.dirichlet(np.ones(K), 20)), keep_versions=3)
    for _ in range(9):
        learner = turn(learner, world)
    assert [one.number for one in learner.versions] == [8, 9, 10]
    assert sorted(learner.guard.good) == [8, 9, 10]
    back = learner.dismissing(10, "why")
    assert back is not None
    assert back.versions == (9,)


# --- forks ------------------------------------------------------------------------------------------------------------


def saved(learner: Any, folder: Path) -> list[bytes]:
    """The router's state and the monitor's, byte for byte."""
    things = [thing for thing in (learner.router, learner.monitor) if hasattr(thing, "save")]
    for number, thing in enumerate(things):
        thing.save(folder / str(number))
    return [(folder / str(number)).read_bytes() for number in range(len(things))]


@pytest.mark.parametrize("models", [1, 2])
def test_a_turn_never_changes_the_learner_it_was_given(tmp_path: Path, models: int) -> None:
    """The default router and a taught monitor: the same turn, taken three times from one value, is the same."""
    monitor = taught_monitor(seed=0, per_task=20)
    tasks = len(monitor.tasks)
    texts = [row.text for row in tiny.generate("sentiment", 12, seed=1, split="test")]
    world = Wide()
    learner = opened(world, Tanbr(tasks, tasks, seed=3), monitor=monitor, models=models)
    for slot in range(3):
        learner = observe(learner, learner.monitor.snapshot().recognise(texts))  # type: ignore[attr-defined]
        for row, text in enumerate(texts):
            world.give(slot, 0.5, source="labels", task=6, id=str(text).encode(), place=row % models)
        before, guard = saved(learner, tmp_path), learner.guard.to_json()
        results = []
        for _ in range(2):
            fresh = Wide(given=list(world.given), live=world.live, issued=world.issued, slots=dict(world.slots))
            results.append(turn(learner, fresh))
            assert saved(learner, tmp_path) == before
            assert learner.guard.to_json() == guard
        first, second = (saved(one, tmp_path) for one in results)
        assert first == second != before
        np.testing.assert_array_equal(results[0].slot.blends, results[1].slot.blends)
        learner = turn(learner, world)
        assert saved(learner, tmp_path) == first
    assert world.asked_texts == 3


class Wide(Memory):
    """The world for as many tasks as the monitor knows; what is probed is only asked whether it is NaN."""

    def probe(self, prepared: Any, *, fully: bool) -> Any:
        return super().probe(prepared, fully=False)


def test_observing_changes_nothing_in_the_value_and_shows_the_guard_the_open_slot_alone() -> None:
    world = Memory()
    learner = opened(world, Scripted(BOTH), models=2)
    rows = [
        Given(1, 0, 0, "feedback", 0, 0.75),
        Given(2, 0, 1, "feedback", None, 0.25, np.array([0.5, 0.5])),
        Given(3, 0, 1, "feedback", None, 0.0, np.array([0.5, 0.5]), novel=True),
        Given(4, 9, 0, "feedback", 0, 0.0),  # of another slot
        Given(5, 0, 7, "feedback", 0, 0.0),  # of a model that there is none of
    ]
    after = observe(learner, None, rows)
    assert [after.guard.reward(version) for version in (1, 2)] == [0.75, 0.25]
    assert dict(learner.guard.live) == {}


# --- labels and the monitor -------------------------------------------------------------------------------------------


class Pupil(Steady):
    """Notes what it is taught; believes firmly that "sure" is of the first task, and nothing of other texts."""

    def __init__(self) -> None:
        super().__init__()
        self.taught: tuple[tuple[str, str], ...] = ()

    def snapshot(self) -> Any:
        return self

    def recognise(self, texts: list[str]) -> Any:
        sure = np.array([text == "sure" for text in texts], dtype=bool)
        posteriors = np.where(sure[:, None], [0.99, 0.01], [0.5, 0.5])
        return type("Seen", (), {"posteriors": posteriors, "novel": ~sure, "informed": True})

    def learn(self, texts: list[str], tasks: list[str]) -> None:
        self.taught += tuple(zip(texts, tasks, strict=True))


def test_labels_teach_the_monitor_never_against_what_it_firmly_believes_nor_on_one_stranger_s_word() -> None:
    world = Memory()
    learner = opened(world, Scripted(), monitor=Pupil())

    def label(text: str, task: int, client: str) -> None:
        world.give(0, 1.0, source="labels", task=task, client=client, id=text.encode())

    label("sure", 1, "")
    label("sure", 0, "somebody")
    label("new", 1, "")
    label("strange", 1, "somebody")
    for client in ("one", "two"):
        label("agreed", 0, client)
    after: Any = turn(learner, world).monitor
    assert set(after.taught) == {("sure", "first"), ("new", "second"), ("agreed", "first")}
    assert learner.monitor.taught == ()  # type: ignore[attr-defined]
