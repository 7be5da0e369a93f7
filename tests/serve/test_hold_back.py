"""Slots that a server holds back: written down, the same after a restart, and what they say for people."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from serve.serving import Run, answer
from tanbr.cli import app
from tanbr.errors import StateError
from tanbr.lab.replay import replay
from tanbr.loop.holdback import gain_of
from tanbr.serve.journal import read_tosses
from tanbr.serve.records import Reason
from tanbr.serve.web.metrics import Metrics


def test_what_learning_is_worth_is_shown_and_survives_a_restart(run: Run, tmp_path: Path) -> None:
    live = run(tmp_path / "state", hold_back=0.5, rewards={"settle_slots": 0})
    assert live.state().gain is None
    with pytest.raises(StateError, match=r"cannot say what learning is worth: .* \(it has 0 and 0\); serve on"):
        replay(tmp_path / "state")
    for _ in range(14):
        answer(live, 8, reward=0.5 if live.learner.slot.reason is Reason.HELD_BACK else 0.75)
        live.end_slot()
    shown = live.state().gain
    assert shown is not None
    assert shown.total == pytest.approx(0.25)
    assert shown.sentence == f"learning is worth +25.0 ± {100 * shown.error:.1f} points since slot 0"
    assert shown.tasks[6] == pytest.approx(0.25)  # sentiment; no other task was rewarded
    assert np.isnan(np.delete(shown.tasks, 6)).all()
    ended = live.slots()[1:]
    assert {view.chance for view in ended} == {0.5}
    assert sum(view.reason is Reason.HELD_BACK for view in ended) == shown.held
    assert all(view.blend == pytest.approx(1 / 8) for view in ended if view.reason is Reason.HELD_BACK)
    metrics = Metrics()
    metrics.follow(live.state, live.info)
    assert b"tanbr_gain 0.25\n" in metrics.text()
    reason, before = live.learner.slot.reason, live.learner.gain
    live.stop()
    again = run(tmp_path / "state", hold_back=0.5, rewards={"settle_slots": 0})
    assert again.learner.slot.reason is reason
    assert again.learner.gain is not None
    assert before is not None
    assert str(again.learner.gain) == str(before)
    assert str(gain_of(read_tosses(again.store.slots()))) == str(before)
    found = replay(tmp_path / "state")  # beside the server
    assert found.self_normalised[0] == pytest.approx(0.25)
    assert found.doubly_robust[0] == pytest.approx(0.25, abs=0.1)
    printed = CliRunner().invoke(app, ["inspect", "--state", str(tmp_path / "state")])
    assert printed.exit_code == 0, printed.output
    assert str(before) in " ".join(printed.output.split())
    assert all(word in printed.output for word in ("by tasks", "sentiment", "self-normalised", "doubly robust"))
