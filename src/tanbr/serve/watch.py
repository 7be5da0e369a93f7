"""Files that are mapped while they are read: they must stay as they were when they were opened."""

from collections.abc import Iterable
from pathlib import Path

from tanbr.errors import CheckpointError
from tanbr.moe.checkpoint import TensorFile


class FileWatch:
    """Remembers what files were; changed ones would be read as garbage, or past their end as a crash."""

    def __init__(self, files: Iterable[TensorFile]) -> None:
        self._stamps = {file.path: _stamp(file.path) for file in files}

    def check(self) -> None:
        """Raise CheckpointError if a file is no longer what it was."""
        for path, stamp in self._stamps.items():
            if _stamp(path) != stamp:
                raise CheckpointError(f"{path} has changed since it was opened; put the old file back, or restart")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
