import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from cli.running import environment
from tanbr.errors import CheckpointError, OutputError
from tanbr.merge import Moe
from tanbr.serve.engines import dense_file
from tanbr.serve.engines.dense_file import DenseFiles
from tanbr.types import as_blend

ONE, OTHER = as_blend([0.1, 0.2, 0.3, 0.4], experts=4), as_blend([1.0, 0, 0, 0], experts=4)


def test_it_holds_what_an_export_does_bit_for_bit_whatever_was_in_it(mixtral: Moe, tmp_path: Path) -> None:
    files = DenseFiles(mixtral, folder=tmp_path)
    file = files.other(None)
    for blend in (ONE, OTHER, ONE):
        file.write(mixtral, blend)
        expected = load_file(
            mixtral.export(blend, tmp_path / f"export-{len(list(tmp_path.iterdir()))}") / "model.safetensors"
        )
        found = load_file(file.folder / "model.safetensors")
        assert found.keys() == expected.keys()
        assert all(found[name].equal(expected[name]) for name in found)
    assert {path.name for path in file.folder.iterdir()} >= {"config.json", "tokenizer.json", "tokenizer_config.json"}
    assert oct(file.folder.stat().st_mode)[-3:] == "755"
    files.close()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(dense_file.PREFIX)]


def test_the_next_blend_never_goes_where_the_last_one_is(mixtral: Moe, tmp_path: Path) -> None:
    files = DenseFiles(mixtral, folder=tmp_path)
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


def test_a_merge_that_fails_leaves_no_blend_in_it(
    mixtral: Moe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = DenseFiles(mixtral, folder=tmp_path)
    file = files.other(None)
    file.write(mixtral, ONE)

    def broken(name: str, tensor: object) -> None:
        raise CheckpointError(f"{name} holds NaN")

    with monkeypatch.context() as patched:
        patched.setattr(dense_file, "finite", broken)
        with pytest.raises(CheckpointError, match="holds NaN"):
            file.write(mixtral, OTHER)
    assert files.holding(ONE) is files.holding(OTHER) is None
    file.write(mixtral, OTHER)
    assert file.blend is not None
    assert np.array_equal(file.blend, OTHER)
    files.close()


def test_shared_memory_is_taken_if_it_has_room(mixtral: Moe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, temporary = tmp_path / "shared", tmp_path / "temporary"
    shared.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(dense_file, "SHARED", shared)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    free = {shared: 10**12, temporary: 10**12}
    monkeypatch.setattr("shutil.disk_usage", lambda root: _Usage(free[Path(root)]))
    for room, root in ((10**12, shared), (10, temporary)):
        free[shared] = room
        files = DenseFiles(mixtral)
        assert files.folder.parent == root
        files.close()
    free[temporary] = 10
    with pytest.raises(OutputError, match=f"bytes for two dense checkpoints are not free in {shared} or {temporary}"):
        DenseFiles(mixtral)
    assert list(shared.iterdir()) == list(temporary.iterdir()) == []


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def test_what_a_killed_process_left_is_removed_and_what_a_live_one_uses_is_not(mixtral: Moe, tmp_path: Path) -> None:
    script = (
        "import os, sys, tanbr\n"
        "from tanbr.serve.engines.dense_file import DenseFiles\n"
        "files = DenseFiles(tanbr.open(sys.argv[1]), folder=sys.argv[2])\n"
        "files.other(None)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(mixtral.path), str(tmp_path)], env=environment(), timeout=100)
    (left,) = tmp_path.iterdir()
    live = DenseFiles(mixtral, folder=tmp_path)
    assert not left.exists()
    other = DenseFiles(mixtral, folder=tmp_path)
    assert live.folder.exists()
    live.close()
    other.close()
