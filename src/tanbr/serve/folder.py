"""The folder of a state: private from the first moment, and of one server at a time."""

import fcntl
import os
from fnmatch import fnmatchcase
from pathlib import Path

from tanbr.errors import StateError

LOCK = "lock"
OURS = (LOCK, "store.sqlite3*", "*.state", ".*.state.*")  # what servers write into a folder


def make_private(folder: Path) -> None:
    """Make the folder if it is missing; only its owner may look into it, unless it holds other things as well.

    What a server left there is its owner's alone, too, also if an earlier version let everybody read it.
    """
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return
    files = list(folder.iterdir())
    ours = [file for file in files if any(fnmatchcase(file.name, pattern) for pattern in OURS)]
    if folder.stat().st_uid == os.getuid() and len(ours) == len(files):
        folder.chmod(0o700)
    for file in ours:
        if file.is_file() and not file.is_symlink() and file.stat().st_uid == os.getuid():
            file.chmod(0o600)


class FolderLock:
    """Held while a server uses a folder; the system lets go of it when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            other = os.read(self._file, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(self._file)
            raise StateError(
                f"{folder} is in use by another server (process {other}); stop that one, or give another --state"
            ) from None
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Let another server use the folder."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
