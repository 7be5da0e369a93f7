"""A folder that tanbr and an engine share, in memory if there is room: each merge is written to a new folder in it.

An engine may read a merge again at any time, so a path means the same weights as long as it exists.
"""

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

from tanbr.errors import OutputError
from tanbr.moe.writing import locked, remove_if_abandoned

SHARED = Path("/dev/shm")  # noqa: S108 - memory that processes share, where there is any
PREFIX = "tanbr-merge-"


class MergeFiles:
    """A folder for merges, removed with this object; first, those that killed processes have left are removed."""

    def __init__(self, nbytes: int, *, count: int, folder: str | None = None) -> None:
        """Take shared memory if `count` merges of `nbytes` fit, or a temporary folder; or the one that is named."""
        roots = [SHARED, Path(tempfile.gettempdir())] if folder is None else [Path(folder)]
        root = _roomy(roots, count, count * nbytes)
        with locked(root):  # nobody tidies up before the new folder is locked
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
            self.folder.chmod(0o755)  # an engine that cannot read its weights dies
            lock = os.open(self.folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
        self._end = weakref.finalize(self, _remove, self.folder, lock)
        self._made = 0

    def close(self) -> None:
        """Remove them."""
        self._end()

    def new(self) -> Path:
        """Name a folder that is not there yet."""
        self._made += 1
        return self.folder / "merges" / str(self._made)  # not where the lock is: who writes a folder locks its parent


def _roomy(roots: Sequence[Path], count: int, wanted: int) -> Path:
    """Find the first folder with so many bytes free."""
    for root in roots:
        if root.is_dir() and os.access(root, os.W_OK):
            with locked(root):
                for left in root.glob(f"{PREFIX}*"):
                    remove_if_abandoned(left)
            if shutil.disk_usage(root).free > wanted:
                return root
    raise OutputError(
        f"{wanted} bytes for {count} merges are not free in {' or '.join(map(str, roots))}; make room there, or "
        "name a folder that the engine reads, too (engine_folder)"
    )


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
