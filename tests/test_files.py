import os
import stat
from pathlib import Path

import pytest

from tanbr.errors import OutputError
from tanbr.files import write_atomically


def test_it_writes_and_replaces(tmp_path: Path) -> None:
    target = tmp_path / "new" / "file.txt"
    write_atomically(target, "first")
    write_atomically(target, b"second")
    assert target.read_bytes() == b"second"
    assert [file.name for file in target.parent.iterdir()] == ["file.txt"]
    with pytest.raises(OutputError, match="cannot write"):
        write_atomically(target / "inside.txt", "x")


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write_atomically(tmp_path / "file.txt", "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        write_atomically(target, "new")
    assert target.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file.txt"]


def test_the_new_name_is_on_the_disk_when_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            synced.extend(os.listdir(descriptor))

    monkeypatch.setattr(os, "fsync", noted)
    write_atomically(tmp_path / "file.txt", "new")
    assert synced == ["file.txt"]
