"""The folder of a state: private from the first moment, and of one server at a time."""

import fcntl
import os
from pathlib import Path

from tanbr.errors import StateError

LOCK = "lock"


def make_private(folder: Path) -> None:
    """Make the folder if it is missing; only its owner may look into it, unless it holds other things as well."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    elif not any(folder.iterdir()) and folder.stat().st_uid == os.getuid():
        folder.chmod(0o700)


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
