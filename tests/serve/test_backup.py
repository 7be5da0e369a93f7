from pathlib import Path

import numpy as np
import pytest

from serve.serving import Ledger, answer, service
from tanbr.errors import OutputError, StateError
from tanbr.serve.backup import back_up


def test_a_copy_of_a_running_servers_state_is_a_state_to_start_from(tmp_path: Path, taught: Path) -> None:
    live = service(tmp_path / "state", taught, router=Ledger())
    live.start()
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
