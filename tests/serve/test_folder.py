import os
import subprocess
import sys
from pathlib import Path

import pytest

from tanbr.errors import StateError
from tanbr.serve.folder import FolderLock, make_private
from tanbr.serve.store import FILE


def test_a_folder_is_of_one_server_at_a_time_and_the_other_is_named(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    with pytest.raises(StateError, match=f"in use by another server \\(process {os.getpid()}\\)"):
        FolderLock(tmp_path)
    lock.release()
    lock.release()
    FolderLock(tmp_path).release()


def test_a_lock_that_was_removed_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, opened = FolderLock(tmp_path), os.open
    late = opened(tmp_path / "lock", os.O_RDWR)  # by a server that comes while this one goes
    lock.release(remove=True)
    assert not list(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lambda *_: late)
        with pytest.raises(StateError, match="in use"):
            FolderLock(tmp_path)
    FolderLock(tmp_path).release()


def test_a_process_that_dies_lets_go(tmp_path: Path) -> None:
    program = (
        f"from pathlib import Path; from tanbr.serve.folder import FolderLock; FolderLock(Path({str(tmp_path)!r})); "
    )
    subprocess.run([sys.executable, "-c", program + "import os; os.kill(os.getpid(), 9)"], check=False)
    FolderLock(tmp_path).release()


def test_an_empty_folder_becomes_private_and_one_with_other_things_stays(tmp_path: Path) -> None:
    empty, full = tmp_path / "empty", tmp_path / "full"
    for folder in (empty, full):
        folder.mkdir(mode=0o755)
    (full / "something").touch()
    for folder in (empty, full):
        make_private(folder)
    assert empty.stat().st_mode & 0o777 == 0o700
    assert full.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("others", [True, False])
def test_what_an_earlier_version_left_readable_to_everybody_becomes_private(tmp_path: Path, others: bool) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    ours = [
        folder / name for name in (FILE, f"{FILE}-wal", f"{FILE}-shm", "router-3.state", ".router-4.state.x1", "lock")
    ]
    notes = folder / "notes.txt"
    for file in [*ours, notes] if others else ours:
        file.touch()
        file.chmod(0o644)
    make_private(folder)
    assert {file.stat().st_mode & 0o777 for file in ours} == {0o600}
    assert folder.stat().st_mode & 0o777 == (0o755 if others else 0o700)
    assert not others or notes.stat().st_mode & 0o777 == 0o644
