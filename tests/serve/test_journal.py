import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tanbr.errors import StateError
from tanbr.files import write_atomically
from tanbr.serve.journal import OpenSlot, SlotReward, Turn, read_slot, state_file, tidy, write_turn
from tanbr.serve.records import Reason, ServiceError
from tanbr.serve.store import Store
from tanbr.types import Decision, PanelDecision, SlotMix

MIX, BLEND = np.array([0.75, 0.25]), np.array([0.5, 0.5, 0.0])
ASKED = Decision(4, MIX, BLEND)
FIRST = OpenSlot(0, (1,), MIX, BLEND[None], ASKED, Reason.CHOSEN, "note")


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


def write(store: Store, turn: Turn, opened: OpenSlot, **states: Any) -> None:
    states = states or {"router": Saved(f"router {opened.slot}"), "monitor": Saved("monitor")}
    write_turn(store, turn, opened, states=states, measured=[], keep_versions=4)


def second(store: Store) -> None:
    told = SlotReward(FIRST, np.array([[0.5, np.nan]]), np.array([[4.0, 0.0]]), False, {"feedback": 1.0})
    mix = SlotMix(MIX, MIX, np.array([3.0, 1.0]), 0.0, 4)
    turn = Turn(FIRST, 9, mix=mix, requests={(0, 0): 4}, told=[told], bad=(1,))
    write(store, turn, OpenSlot(turn.next, (2,), MIX, BLEND[None, ::-1].copy(), None, Reason.START))


def test_a_slot_is_read_back_as_it_was_opened(store: Store) -> None:
    write(store, Turn(None, 0), FIRST)
    (row,) = store.untold()
    again = read_slot(row, experts=3, tasks=2, decisions=[Decision(3, MIX, BLEND), ASKED])
    assert (again.slot, again.merge_version, again.reason, again.note) == (0, 1, Reason.CHOSEN, "note")
    assert again.decision is ASKED
    np.testing.assert_array_equal(again.blend, BLEND)
    assert read_slot(row, experts=3, tasks=2).decision is None
    with pytest.raises(StateError, match="the store's slot 0 is damaged"):
        read_slot(row, experts=4, tasks=2)


def test_the_models_of_a_panel_are_kept_and_counted_apart(store: Store) -> None:
    blends, estimates = np.array([BLEND, [0.0, 0.0, 1.0]]), np.array([[0.7, 0.2], [0.3, 0.9]])
    asked = PanelDecision(4, MIX, blends, estimates)
    panel = OpenSlot(0, (1, 2), MIX, blends, asked, Reason.CHOSEN, estimates=estimates)
    write(store, Turn(None, 0), panel)
    again = read_slot(store.untold()[0], experts=3, tasks=2, decisions=[asked])
    assert (again.versions, again.decision, again.task_models.tolist()) == ((1, 2), asked, [0, 1])
    np.testing.assert_array_equal(again.blends, blends)
    np.testing.assert_array_equal(again.estimates, estimates)
    told = SlotReward(panel, np.array([[0.5, np.nan], [0.0, 1.0]]), np.array([[4.0, 0.0], [1.0, 3.0]]), False, {})
    np.testing.assert_allclose(told.record.reward, [0.4, 1.0], rtol=1e-15)
    turn = Turn(panel, 9, mix=SlotMix(MIX, MIX, MIX, 0.0, 8), requests={(0, 0): 4, (0, 1): 5}, told=[told])
    write(store, turn, OpenSlot(1, (2,), MIX, blends[1:], None, Reason.START))
    models = store.slots()[1]["models"]
    assert [(row["version"], row["requests"], row["counts"].tolist()) for row in models] == [
        (1, 4, [4.0, 0.0]),
        (2, 5, [1.0, 3.0]),
    ]
    second, first = store.versions()
    assert (first["requests"], first["sums"].tolist()) == (4, [2.0, 0.0])
    assert (second["requests"], second["sums"].tolist()) == (5, [0.0, 3.0])


def test_a_turn_is_one_transaction_with_the_states_it_names(store: Store) -> None:
    write(store, Turn(None, 0), FIRST)
    second(store)
    assert store.meta("mark") == 9
    assert state_file(store, "router").read_text() == "router 1"
    assert not (store.folder / "router-0.state").exists()
    opened, ended = store.slots()
    assert (ended["told"], ended["requests"], ended["reward"].tolist()[0]) == (1, 4, 0.5)
    assert opened["slot"] == 1
    bad = next(row for row in store.versions() if row["version"] == 1)
    assert (bad["good"], bad["sums"].tolist(), bad["counts"].tolist()) == (0, [2.0, 0.0], [4.0, 0.0])


def test_an_old_state_goes_only_when_the_new_one_s_name_is_on_the_disk(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, Turn(None, 0), FIRST)
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
    write(store, Turn(None, 0), FIRST)
    with pytest.raises((OSError, ServiceError)):
        write(store, Turn(FIRST, 9), OpenSlot(1, (2,), MIX, BLEND[None], None, Reason.START), router=Broken())
    assert [row["slot"] for row in store.slots()] == [0]
    assert state_file(store, "router").read_text() == "router 0"


def test_states_that_no_turn_names_are_tidied_away(store: Store) -> None:
    write(store, Turn(None, 0), FIRST)
    left = store.folder / "router-7.state"
    left.write_text("of a process that was killed")
    tidy(store)
    assert not left.exists()
    assert state_file(store, "router").exists()
    store.set_meta("router", "../elsewhere")
    with pytest.raises(StateError, match="names no router to go on with"):
        state_file(store, "router")
