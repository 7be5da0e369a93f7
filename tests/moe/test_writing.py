"""Folders that appear whole or not at all, even if their writer is killed."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes import started
from tanbr.errors import OutputError
from tanbr.moe.writing import new_folder

WRITER = """
import sys
from tanbr.moe.writing import new_folder
with new_folder(sys.argv[1]) as folder:
    (folder / "half").write_text("of it")
    print("writing", flush=True)
    sys.stdin.read()
"""


@contextmanager
def writer(out: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is in the middle of writing to `out`."""
    command = [sys.executable, "-c", WRITER, out]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        yield process


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    with writer(tmp_path / "out") as killed:
        killed.kill()
        killed.wait()
    [left] = names(tmp_path)
    assert left.startswith(".out.")
    (tmp_path / ".outer.x.unfinished").mkdir()  # another's, by its name
    with new_folder(tmp_path / "out") as folder:
        assert sorted([folder.name, ".outer.x.unfinished"]) == names(tmp_path)
    assert names(tmp_path) == [".outer.x.unfinished", "out"]


def test_what_a_live_writer_is_at_stays(tmp_path: Path) -> None:
    with writer(tmp_path / "out") as living:
        with new_folder(tmp_path / "out") as folder:
            (folder / "mine").write_text("")
            assert len(names(tmp_path)) == 2
        living.communicate("")  # it ends its writing, and finds that another was faster
    assert living.returncode != 0
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["mine"]


def test_an_existing_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(OutputError, match="exists already"), new_folder(tmp_path / "out"):
        pass
