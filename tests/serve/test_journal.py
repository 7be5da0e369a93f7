import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tanbr.errors import StateError
from tanbr.files import write_atomically
from tanbr.loop.choose import StartBlend
from tanbr.loop.config import LoopConfig
from tanbr.loop.guard import Guard
from tanbr.loop.learner import Learner, Rules
from tanbr.loop.rewards import Trust
from tanbr.loop.slot import Reason, Slot, Told, Turn, Version
from tanbr.serve.journal import read_learner, state_file, write_turn
from tanbr.serve.records import ServiceError
from tanbr.serve.store import Store
from tanbr.types import Decision, SlotMix

MIX, BLEND = np.array([0.75, 0.25]), np.array([0.5, 0.5, 0.0])
ASKED = Decision(4, MIX, BLEND)
ONES, ZEROS = np.ones((1, 2)), np.zeros(2)
FIRST = Slot(0, (1,), MIX, BLEND[None], ONES, ASKED, Reason.CHOSEN, "note")
SECOND = Slot(1, (2,), MIX, BLEND[None, ::-1].copy(), ONES, None, Reason.START)
MIXED = SlotMix(MIX, MIX, np.array([3.0, 1.0]), 0.0, 4)
RULES = Rules(LoopConfig(), StartBlend("even", experts=3))


class Saved:
    def __init__(self, text: str, *, broken: bool = False) -> None:
        self.text, self.broken, self.open = text, broken, [ASKED]

    def save(self, path: str | Path) -> None:
        if self.broken:
            raise OSError("no space")
        write_atomically(path, self.text)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path)
    yield opened
    opened.close()


def write(store: Store, turn: Turn, versions: Sequence[Version] = (), *, broken: bool = False, **more: Any) -> Learner:
    slot = turn.opened
    known = [Version(number, blend, ZEROS, ZEROS) for number, blend in zip(slot.versions, slot.blends, strict=True)]
    router: Any = Saved(f"router {slot.number}", broken=broken)
    monitor: Any = Saved("monitor")
    kept = tuple(versions) or tuple(known)
    learner = Learner(RULES, router, monitor, slot, Guard.empty(2), Trust(), MIX, versions=kept, mark=9)
    write_turn(store, turn, learner, **more)
    return learner


def begin(store: Store) -> Learner:
    return write(store, Turn(FIRST, None, None))


def test_a_turn_is_one_transaction_with_the_states_it_names(store: Store) -> None:
    first = begin(store).versions[0]
    told = Told(FIRST, np.array([[0.5, np.nan]]), np.array([[4.0, 0.0]]), {"feedback": 1.0})
    bad = replace(first, good=False, sums=np.array([2.0, 0.0]), counts=np.array([4.0, 0.0]))
    two = Version(2, SECOND.blend, ZEROS, ZEROS)
    before = write(store, Turn(SECOND, FIRST, MIXED, (told,)), [bad, two], regret=0.5)
    assert state_file(store, "router").read_text() == "router 1"
    assert not (store.folder / "router-0.state").exists()
    opened, ended = store.slots()
    assert (ended["told"], ended["reward"].tolist()[0], ended["counts"].tolist()) == (1, 0.5, [4.0, 0.0])
    assert (opened["slot"], opened["regret"]) == (1, 0.5)
    late = Told(FIRST, ONES, ONES, {}, late=True)
    write(store, Turn(replace(SECOND, number=2), SECOND, MIXED, (late,)), before.versions)
    assert store.slots()[2]["counts"].tolist() == [4.0, 0.0]  # what comes late leaves the slot's own
    again = read_learner(store, RULES, before.router, before.monitor, experts=3, tasks=2)
    assert (again.mark, again.slot.number, [one.number for one in again.settling]) == (9, 2, [1])
    assert [(one.number, one.good, one.sums.tolist()) for one in again.versions] == [
        (1, False, [2.0, 0.0]),
        (2, True, [0.0, 0.0]),
    ]
    write(store, Turn(replace(SECOND, number=3), None, None), [two])
    assert [row["version"] for row in store.versions()] == [2]  # the learner remembers no other


def test_an_old_state_goes_only_when_the_new_one_s_name_is_on_the_disk(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(store)
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
    write(store, Turn(SECOND, FIRST, MIXED))
    assert said == [("router-0.state", True), ("monitor-0.state", True)]


def test_a_state_that_cannot_be_saved_leaves_everything_as_it_was(store: Store) -> None:
    begin(store)
    with pytest.raises((OSError, ServiceError), match="no space"):
        write(store, Turn(SECOND, FIRST, None), broken=True)
    assert [row["slot"] for row in store.slots()] == [0]
    assert state_file(store, "router").read_text() == "router 0"


def test_states_that_no_turn_names_are_tidied_away(store: Store) -> None:
    learner = begin(store)
    left = store.folder / "router-7.state"
    left.write_text("of a process that was killed")
    read_learner(store, RULES, learner.router, learner.monitor, experts=3, tasks=2)
    assert not left.exists()
    assert state_file(store, "router").exists()
    store.set_meta("router", None)
    with pytest.raises(StateError, match="is damaged"):
        state_file(store, "router")
