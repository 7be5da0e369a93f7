import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tanbr.errors import StateError
from tanbr.files import write_atomically
from tanbr.loop.rewards import Tally
from tanbr.loop.slot import Reason, Slot, Told, Turn
from tanbr.serve.journal import read_slot, state_file, tidy, write_turn
from tanbr.serve.records import ServiceError
from tanbr.serve.store import Store
from tanbr.types import Decision, SlotMix

MIX, BLEND = np.array([0.75, 0.25]), np.array([0.5, 0.5, 0.0])
ASKED = Decision(4, MIX, BLEND)
ONES = np.ones((1, 2))
FIRST = Slot(0, (1,), MIX, BLEND[None], ONES, ASKED, Reason.CHOSEN, "note")
SECOND = Slot(1, (2,), MIX, BLEND[None, ::-1].copy(), ONES, None, Reason.START)
BEGIN = Turn(FIRST, None, None)


class Saved:
    def __init__(self, text: str) -> None:
        self.text = text

    def save(self, path: str | Path) -> None:
        write_atomically(path, self.text)


class Broken:
    def save(self, path: str | Path) -> None:
        raise OSError("no space")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path)
    yield opened
    opened.close()


def write(store: Store, turn: Turn, *, router: Any = None, **more: Any) -> None:
    usual: dict[str, Any] = {"requests": {}, "measured": {}, "keep_versions": 4, "regret": 0.5, "meta": {"mark": 9}}
    router = router or Saved(f"router {turn.opened.number}")
    write_turn(store, turn, router=router, monitor=Saved("monitor"), **(usual | more))


def second(store: Store) -> None:
    told = Told(FIRST, np.array([[0.5, np.nan]]), np.array([[4.0, 0.0]]), {"feedback": 1.0})
    mix = SlotMix(MIX, MIX, np.array([3.0, 1.0]), 0.0, 4)
    tally = Tally(2).add("shadow", np.array([1.0, 0.5]), np.array([2.0, 1.0]))
    write(store, Turn(SECOND, FIRST, mix, (told,), bad=(1,)), requests={(0, 0): 4}, measured={0: tally})


def test_a_slot_is_read_back_as_it_was_opened(store: Store) -> None:
    write(store, BEGIN)
    (row,) = store.untold()
    again = read_slot(row, experts=3, tasks=2, decisions=[Decision(3, MIX, BLEND), ASKED])
    assert (again.number, again.versions, again.reason, again.note) == (0, (1,), Reason.CHOSEN, "note")
    assert again.decision is ASKED
    np.testing.assert_array_equal(again.blend, BLEND)
    assert read_slot(row, experts=3, tasks=2).decision is None
    with pytest.raises(StateError, match="the store's slot 0 is damaged"):
        read_slot(row, experts=4, tasks=2)


def test_the_models_of_a_panel_are_kept_and_counted_apart(store: Store) -> None:
    blends, estimates = np.array([BLEND, [0.0, 0.0, 1.0]]), np.array([[0.7, 0.2], [0.3, 0.9]])
    asked = Decision(4, MIX, blends, estimates)
    panel = Slot(0, (1, 2), MIX, blends, estimates, asked, Reason.CHOSEN)
    write(store, Turn(panel, None, None))
    again = read_slot(store.untold()[0], experts=3, tasks=2, decisions=[asked])
    assert (again.versions, again.decision, again.panel.task_models.tolist()) == ((1, 2), asked, [0, 1])
    np.testing.assert_array_equal(again.blends, blends)
    np.testing.assert_array_equal(again.estimates, estimates)
    told = Told(panel, np.array([[0.5, np.nan], [0.0, 1.0]]), np.array([[4.0, 0.0], [1.0, 3.0]]), {})
    np.testing.assert_allclose(told.record.reward, [0.4, 1.0], rtol=1e-15)
    alone = Slot(1, (2,), MIX, blends[1:], ONES, None, Reason.START)
    turn = Turn(alone, panel, SlotMix(MIX, MIX, MIX, 0.0, 8), (told,))
    write(store, turn, requests={(0, 0): 4, (0, 1): 5})
    models = store.slots()[1]["models"]
    assert [(row["version"], row["requests"], row["counts"].tolist()) for row in models] == [
        (1, 4, [4.0, 0.0]),
        (2, 5, [1.0, 3.0]),
    ]
    second, first = store.versions()
    assert (first["requests"], first["sums"].tolist()) == (4, [2.0, 0.0])
    assert (second["requests"], second["sums"].tolist()) == (5, [0.0, 3.0])


def test_a_turn_is_one_transaction_with_the_states_it_names(store: Store) -> None:
    write(store, BEGIN)
    second(store)
    assert store.meta("mark") == 9
    assert state_file(store, "router").read_text() == "router 1"
    assert not (store.folder / "router-0.state").exists()
    opened, ended = store.slots()
    assert (ended["told"], ended["requests"], ended["reward"].tolist()[0]) == (1, 4, 0.5)
    assert (opened["slot"], opened["regret"]) == (1, 0.5)
    assert {place: list(parts) for place, parts in store.measured(0).items()} == {0: ["shadow"]}
    bad = next(row for row in store.versions() if row["version"] == 1)
    assert (bad["good"], bad["sums"].tolist(), bad["counts"].tolist()) == (0, [2.0, 0.0], [4.0, 0.0])


def test_rewards_that_come_late_are_the_version_s_and_leave_the_slot_s_own(store: Store) -> None:
    write(store, BEGIN)
    second(store)
    late = Told(FIRST, np.array([[1.0, 1.0]]), np.array([[2.0, 1.0]]), {}, late=True)
    third = replace(SECOND, number=2)
    write(store, Turn(third, SECOND, SlotMix(MIX, MIX, MIX, 0.0, 8), (late,)))
    assert store.slots()[2]["counts"].tolist() == [4.0, 0.0]
    first = store.versions()[-1]
    assert (first["sums"].tolist(), first["counts"].tolist()) == ([4.0, 1.0], [6.0, 1.0])


def test_the_version_that_answers_is_kept_whatever_its_age(store: Store) -> None:
    write(store, BEGIN)
    for number in range(1, 7):
        version = 1 if number == 6 else number + 1
        write(store, Turn(replace(SECOND, number=number, versions=(version,)), None, None))
    assert [row["version"] for row in store.versions()] == [6, 5, 4, 1]


def test_an_old_state_goes_only_when_the_new_one_s_name_is_on_the_disk(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, BEGIN)
    said: list[tuple[str, bool]] = []
    synced: set[str] = set()
    fsync, unlink = os.fsync, Path.unlink

    def sync(descriptor: int) -> None:
        fsync(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            synced.update(os.listdir(descriptor))

    def remove(path: Path, **named: Any) -> None:
        said.append((path.name, path.name.replace("0", "1") in synced))
        unlink(path, **named)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "unlink", remove)
    second(store)
    assert said == [("router-0.state", True), ("monitor-0.state", True)]


def test_a_state_that_cannot_be_saved_leaves_everything_as_it_was(store: Store) -> None:
    write(store, BEGIN)
    with pytest.raises((OSError, ServiceError)):
        write(store, Turn(SECOND, FIRST, None), router=Broken())
    assert [row["slot"] for row in store.slots()] == [0]
    assert state_file(store, "router").read_text() == "router 0"


def test_states_that_no_turn_names_are_tidied_away(store: Store) -> None:
    write(store, BEGIN)
    left = store.folder / "router-7.state"
    left.write_text("of a process that was killed")
    tidy(store)
    assert not left.exists()
    assert state_file(store, "router").exists()
    store.set_meta("router", "../elsewhere")
    with pytest.raises(StateError, match="names no router to go on with"):
        state_file(store, "router")
