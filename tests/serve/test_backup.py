from pathlib import Path

import numpy as np
import pytest

from serve.serving import TEXTS, Ledger, Run, answer, service
from tanbr.errors import OutputError, StateError
from tanbr.serve.backup import back_up
from tanbr.serve.records import Feedback


def test_a_copy_of_a_running_servers_state_is_a_state_to_start_from(run: Run, tmp_path: Path, taught: Path) -> None:
    live = run(tmp_path / "state")
    accepted = answer(live)
    live.end_slot()
    back_up(tmp_path / "state", tmp_path / "copy")
    then = live.state()
    live.end_slot()
    live.stop()
    again = service(tmp_path / "copy", taught, router=Ledger())
    assert (again.state().slot, again.state().merge_version) == (then.slot, then.merge_version)
    np.testing.assert_array_equal(again.state().blend, then.blend)
    again.start()
    again.end_slot()
    assert again.learner.router.told == accepted
    again.stop()
    with pytest.raises(OutputError, match="exists already"):
        back_up(tmp_path / "state", tmp_path / "copy")
    with pytest.raises(StateError, match="holds no state"):
        back_up(tmp_path / "nowhere", tmp_path / "other")


def test_ids_of_the_time_that_a_restored_copy_does_not_know_are_unknown(run: Run, tmp_path: Path) -> None:
    live = run(tmp_path / "state")
    kept = live.submit(TEXTS[:1]).result(30).request_ids
    live.end_slot()
    back_up(tmp_path / "state", tmp_path / "copy")
    shared = live.submit(TEXTS[:1]).result(30).request_ids  # by the slot that was open when the copy was taken
    live.end_slot()
    lost = live.submit(TEXTS[:1]).result(30).request_ids  # by a slot that the copy will open with another blend
    live.stop()
    restored = run(tmp_path / "copy")
    for _ in range(3):
        restored.end_slot()
    receipt = restored.feedback([Feedback(i, reward=1.0) for i in (*kept, *shared, *lost)])
    restored.stop()
    assert receipt.outcomes == ("accepted", "accepted", "unknown")
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "copy").iterdir()} == {0o600}
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o700
