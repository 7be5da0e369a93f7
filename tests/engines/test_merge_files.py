import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.running import environment
from tanbr.engines import merge_files
from tanbr.engines.merge_files import MergeFiles
from tanbr.errors import OutputError


def test_shared_memory_is_taken_if_it_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, temporary = tmp_path / "shared", tmp_path / "temporary"
    shared.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(merge_files, "SHARED", shared)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    free = {shared: 10**12, temporary: 10**12}
    monkeypatch.setattr("shutil.disk_usage", lambda root: SimpleNamespace(free=free[Path(root)]))
    for room, root in ((10**12, shared), (10, temporary)):
        free[shared] = room
        files = MergeFiles(100, count=2)
        assert files.folder.parent == root
        files.close()
    free[temporary] = 10
    with pytest.raises(OutputError, match=f"bytes for 2 merges are not free in {shared} or {temporary}"):
        MergeFiles(100, count=2)
    assert list(shared.iterdir()) == list(temporary.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_a_live_one_uses_is_not(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from tanbr.engines.merge_files import MergeFiles\n"
        "files = MergeFiles(0, count=2, folder=sys.argv[1])\n"
        "files.new().mkdir(parents=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=environment())
    (left,) = tmp_path.iterdir()
    live = MergeFiles(0, count=2, folder=str(tmp_path))
    assert not left.exists()
    other = MergeFiles(0, count=2, folder=str(tmp_path))
    assert live.folder.exists()
    live.close()
    other.close()
