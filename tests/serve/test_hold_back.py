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
from tanbr.serve.records import Phase, Reason
from tanbr.serve.service import Service
from tanbr.serve.web.metrics import Metrics


def lived(live: Service, slots: int, *, learned: float) -> None:
    """Reward requests of every slot: .5 with the start blend, and `learned` with what the router chose."""
    for _ in range(slots):
        held = live.learner.slot.reason is Reason.HELD_BACK
        answer(live, 8, reward=0.5 if held else learned)
        live.end_slot()


def test_what_learning_is_worth_is_shown_and_survives_a_restart(run: Run, tmp_path: Path) -> None:
    live = run(tmp_path / "state", hold_back=0.5, rewards={"settle_slots": 0})
    assert live.state().gain is None
    with pytest.raises(StateError, match=r"cannot say what learning is worth: .* \(it has 0 and 0\); serve on"):
        replay(tmp_path / "state")
    lived(live, 14, learned=0.75)
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


def test_a_server_whose_learning_costs_reward_goes_back_to_the_start_blend_and_says_so(
    run: Run, tmp_path: Path
) -> None:
    live = run(tmp_path / "state", hold_back=0.5, margin=1.0, rewards={"settle_slots": 0})
    lived(live, 24, learned=0.0)
    now = live.state()
    assert now.phase is Phase.HARMED
    assert now.blend == pytest.approx(1 / 8)
    assert now.alarms[0].text.startswith("learning is worth -50.0 ± ")
    assert now.alarms[0].text.endswith(": the start blend is served again")
    live.stop()
    assert run(tmp_path / "state", hold_back=0.5, margin=1.0).state().phase is Phase.HARMED
