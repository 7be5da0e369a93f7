import subprocess
import sys
from pathlib import Path

import pytest

from cli.running import environment
from tanbr.engines import merge_files
from tanbr.engines.dense_file import DenseFile
from tanbr.engines.merge_files import MergeFiles
from tanbr.errors import OutputError
from tanbr.merge import Moe
from tanbr.types import as_blend

ONE, OTHER = as_blend([0.1, 0.2, 0.3, 0.4], experts=4), as_blend([1.0, 0, 0, 0], experts=4)


def test_the_next_blend_never_goes_where_the_last_one_is(mixtral: Moe, tmp_path: Path) -> None:
    files = MergeFiles(mixtral, DenseFile, folder=tmp_path)
    used = files.other(None)
    used.write(mixtral, ONE)
    for _ in range(2):
        free = files.other(used)
        assert free is not used
        free.write(mixtral, OTHER)
        assert files.holding(ONE) is used
        assert files.holding(OTHER) is free
        assert files.other(free) is used
    assert len(list(files.folder.iterdir())) == 2
    files.close()


def test_shared_memory_is_taken_if_it_has_room(mixtral: Moe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, temporary = tmp_path / "shared", tmp_path / "temporary"
    shared.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(merge_files, "SHARED", shared)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    free = {shared: 10**12, temporary: 10**12}
    monkeypatch.setattr("shutil.disk_usage", lambda root: _Usage(free[Path(root)]))
    for room, root in ((10**12, shared), (10, temporary)):
        free[shared] = room
        files = MergeFiles(mixtral, DenseFile)
        assert files.folder.parent == root
        files.close()
    free[temporary] = 10
    with pytest.raises(OutputError, match=f"bytes for two merges are not free in {shared} or {temporary}"):
        MergeFiles(mixtral, DenseFile)
    assert list(shared.iterdir()) == list(temporary.iterdir()) == []


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def test_what_a_killed_process_left_is_removed_and_what_a_live_one_uses_is_not(mixtral: Moe, tmp_path: Path) -> None:
    script = (
        "import os, sys, tanbr\n"
        "from tanbr.engines.dense_file import DenseFile\n"
        "from tanbr.engines.merge_files import MergeFiles\n"
        "files = MergeFiles(tanbr.open(sys.argv[1]), DenseFile, folder=sys.argv[2])\n"
        "files.other(None)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(mixtral.path), str(tmp_path)], env=environment(), timeout=100)
    (left,) = tmp_path.iterdir()
    live = MergeFiles(mixtral, DenseFile, folder=tmp_path)
    assert not left.exists()
    other = MergeFiles(mixtral, DenseFile, folder=tmp_path)
    assert live.folder.exists()
    live.close()
    other.close()
