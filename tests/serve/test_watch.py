import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tanbr.errors import CheckpointError
from tanbr.serve.watch import FileWatch


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"weights")
    return path


def watch(path: Path) -> FileWatch:
    return FileWatch([SimpleNamespace(path=path)])  # type: ignore[list-item]


def test_a_file_that_stays_is_fine(file: Path) -> None:
    watched = watch(file)
    file.read_bytes()
    watched.check()


def test_a_file_that_changes_is_named_until_it_is_back(file: Path) -> None:
    watched, stamp = watch(file), file.stat()
    for change in (lambda: file.write_bytes(b"longer weights"), lambda: os.utime(file, (0, 0)), file.unlink):
        change()
        with pytest.raises(CheckpointError, match=r"weights has changed since it was opened; put the old file back"):
            watched.check()
        if file.exists():
            file.write_bytes(b"weights")
            os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
            watched.check()


def test_another_file_in_its_place_is_not_the_same(file: Path) -> None:
    watched, stamp = watch(file), file.stat()
    other = file.with_name("other")
    other.write_bytes(file.read_bytes())
    os.utime(other, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    other.replace(file)
    with pytest.raises(CheckpointError, match="has changed"):
        watched.check()
