"""What practice has found, as people see it: in the state, after a restart, as a card. Exercises are done by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from serve.serving import Run, V, labelled
from tanbr.cli import app
from tanbr.errors import CheckpointError, StateError
from tanbr.lab.tasks import tiny
from tanbr.loop.learner import exercise
from tanbr.loop.practice import READY
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.serve.build import known_of
from tanbr.serve.practice import PracticeThread
from tanbr.serve.records import PracticeView
from tanbr.serve.service import Service
from tanbr.serve.store import Store
from tanbr.tasks.card import read_card, write_card

NAMES = [task.name for task in tiny.TASKS]


def begin(run: Run, state: Path, **settings: Any) -> Service:
    """Start a service that only practises when `practise` says so."""
    live = run(state, router=None, practice=1.0, **settings)
    assert live.practising is not None
    live.practising.stop()  # before there is anything to try
    return live


def practise(live: Service, count: int) -> None:
    """Do so many exercises, as the thread does them."""
    assert live.space is not None
    thread = PracticeThread(live.learning, live.engine, live.space)
    for _ in range(count):
        wanted = exercise(live.learner)
        assert wanted is not None
        rewards = thread.answer(wanted)
        assert rewards is not None
        live.call(lambda learning, done=(wanted, rewards): learning.practised(*done))


def shown(live: Service) -> PracticeView:
    found = live.state().practice
    assert found is not None
    return found


def card(state: Path, out: Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["card", "--learned", str(state), "--out", str(out)])
    error = "" if done.exception is None or isinstance(done.exception, SystemExit) else str(done.exception)
    return done.exit_code, " ".join((done.output + error).split())


def test_what_practice_found_is_shown_kept_and_written_as_a_card(run: Run, moe: Moe, tmp_path: Path) -> None:
    state, out = tmp_path / "state", tmp_path / "learned"
    live = begin(run, state)
    empty = shown(live)
    assert [empty.exercises, *(one.rows for one in empty.tasks)] == [0] * (1 + V)
    assert "practised too little yet (0 exercises" in card(state, out)[1]
    labelled(live, tiny.TASKS)
    assert [one.logged for one in shown(live).tasks] == [8] * V
    practise(live, READY)  # the even blend, every expert alone, and what is suggested
    live.end_slot()
    now = live.state()
    found = shown(live)
    assert found.exercises == READY
    assert [one.rows for one in found.tasks] == [8] * V
    own = read_card(moe.path).experts_of(NAMES)
    assert [one.expert for one in found.tasks] == list(own)  # though nobody said it
    means, errors, _ = live.learner.practice.experts_alone()  # type: ignore[union-attr]
    np.testing.assert_allclose([one.rewards for one in found.tasks], means)
    np.testing.assert_allclose([one.errors for one in found.tasks], 1.96 * errors)
    tried = {one.why: one for one in found.tried}
    assert tried.keys() >= {"an expert alone", "what would be served"}
    assert found.tried[0].slot >= found.tried[-1].slot
    assert now.why is not None
    assert f"as practice decided after {READY} exercises on logged requests" in now.why.sentence
    live.stop()

    again = begin(run, state)
    kept = shown(again)
    assert (kept.exercises, kept.tried) == (READY, found.tried)
    assert [(one.rows, one.rewards, one.expert) for one in kept.tasks] == [
        (one.rows, one.rewards, one.expert) for one in found.tasks
    ]
    assert [one.logged for one in kept.tasks] == [0] * V  # the texts are gone
    labelled(again, tiny.TASKS[:1], 16)
    practise(again, 9)
    newer = shown(again)
    assert newer.exercises == READY + 9
    assert [one.rows for one in newer.tasks] == [16] + [8] * (V - 1)  # a task's own rows, once it has some
    again.stop()

    before = {file.name: file.read_bytes() for file in state.iterdir()}
    code, said = card(state, out)
    assert code == 0, said
    assert all(name in said for name in NAMES)
    assert {file.name: file.read_bytes() for file in state.iterdir()} == before
    assert read_card(out).own_experts == dict(zip(NAMES, own, strict=True))
    assert read_card(out).tasks == read_card(moe.path).tasks
    assert "is there already" in card(state, out)[1]

    store = Store(state)
    store.set_meta("practice", '{"exercises": 1}')
    store.close()
    with pytest.raises(StateError, match="is damaged"):
        begin(run, state)
    assert "is damaged" in card(state, tmp_path / "other")[1]
    assert not (tmp_path / "other").exists()


def test_no_card_is_written_while_a_task_has_too_few_rows(run: Run, tmp_path: Path) -> None:
    live = begin(run, tmp_path / "state")
    labelled(live, tiny.TASKS[1:])
    practise(live, READY - 1)
    live.end_slot()
    assert (
        f"practised too little yet ({READY - 1} exercises of {READY})"
        in card(tmp_path / "state", tmp_path / "learned")[1]
    )
    practise(live, 1)
    live.end_slot()
    code, said = card(tmp_path / "state", tmp_path / "learned")
    assert code == 1  # the command line makes one sentence and exit code 2 of it
    assert f"needs 8 practised rows of a task to know its expert ({NAMES[0]} has 0)" in said
    assert not (tmp_path / "learned").exists()


def test_a_learned_card_is_what_the_next_server_starts_by(moe: Moe, tmp_path: Path) -> None:
    for file in moe.path.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "tanbr.json").unlink()
    said = read_card(moe.path)
    found = dict.fromkeys(NAMES, 3)  # tasks may share an expert
    write_card(tmp_path, replace(said, own_experts=found))
    assert known_of(open_moe(tmp_path), None).own == (3,) * V
    write_card(tmp_path, replace(said, own_experts=found | {NAMES[0]: 8}))
    with pytest.raises(CheckpointError, match="expert 8, counted from 0, but there are 8"):
        known_of(open_moe(tmp_path), None)
