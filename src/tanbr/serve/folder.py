"""The folder of a state: private from the first moment, and of one server at a time."""

import fcntl
import os
from fnmatch import fnmatchcase
from pathlib import Path

from tanbr.errors import StateError

LOCK = "lock"
OURS = (LOCK, "store.sqlite3*", "*.state", ".*.state.*")  # what servers write into a folder


def make_private(folder: Path) -> list[Path]:
    """Make the folder if it is missing; only its owner may look into it, unless it holds other things as well.

    What a server left there is its owner's alone, too, also if an earlier version let everybody read it. Gives the
    folders that were made, innermost first.
    """
    if not folder.is_dir():
        made = [one for one in (folder, *folder.parents) if not one.exists()]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return made
    files = list(folder.iterdir())
    ours = [file for file in files if any(fnmatchcase(file.name, pattern) for pattern in OURS)]
    if folder.stat().st_uid == os.getuid() and len(ours) == len(files):
        folder.chmod(0o700)
    for file in ours:
        if file.is_file() and not file.is_symlink() and file.stat().st_uid == os.getuid():
            file.chmod(0o600)
    return []


class FolderLock:
    """Held while a server uses a folder; the system lets go of it when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._file).st_nlink == 0:
                raise OSError("whoever held it has removed it")
        except OSError:
            other = os.read(self._file, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(self._file)
            raise StateError(
                f"{folder} is in use by another server (process {other}); stop that one, or give another --state"
            ) from None
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())

    def release(self, *, remove: bool = False) -> None:
        """Let another server use the folder; `remove` leaves no trace in it."""
        if self._file >= 0:
            if remove:
                self._path.unlink(missing_ok=True)
            os.close(self._file)
        self._file = -1
