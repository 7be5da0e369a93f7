"""Memory that tanbr and an engine share: a merge is written there, and nowhere else, in the form the engine loads.

There are two files. The engine has loaded one; the next blend goes to the other. What the engine has is never written
to.
"""

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from tanbr.errors import OutputError
from tanbr.merge import Moe
from tanbr.moe.writing import locked, remove_if_abandoned
from tanbr.types import Blend

SHARED = Path("/dev/shm")  # noqa: S108 - memory that processes share, where there is any
PREFIX = "tanbr-merge-"


class MergeFile(Protocol):
    """One merge as an engine loads it: a dense checkpoint, or an adapter."""

    folder: Path  # that the engine is given the name of
    blend: Blend | None  # (K,) that is in it, once it is whole

    def __init__(self, moe: Moe, folder: Path) -> None: ...

    @staticmethod
    def room(moe: Moe) -> int:
        """Bytes that a merge takes, at most."""
        ...

    def write(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:
        """Merge a blend (K,) into it, resting so that at most `share` of the time is work."""
        ...


class MergeFiles:
    """Two of them, in a folder that goes when this does; what a killed process left behind goes first."""

    def __init__(self, moe: Moe, kind: type[MergeFile], *, folder: str | Path | None = None) -> None:
        """Take shared memory if there is enough of it, or a temporary folder; or the `folder` that is named."""
        self.nbytes = kind.room(moe)  # of one
        root = _roomy([SHARED, Path(tempfile.gettempdir())] if folder is None else [Path(folder)], 2 * self.nbytes)
        with locked(root):  # nobody tidies up between a folder's making and its locking
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
            self.folder.chmod(0o755)  # an engine that cannot read its weights dies
            lock = os.open(self.folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
        self._end = weakref.finalize(self, _removed, self.folder, lock)
        self._moe, self._kind = moe, kind
        self._files: list[MergeFile] = []

    def close(self) -> None:
        """Remove them."""
        self._end()

    def write_to(self, file: MergeFile) -> None:
        """Let the first merge go to a file elsewhere, which stays."""
        self._files.append(file)

    def holding(self, blend: Blend) -> MergeFile | None:
        """The file that a blend (K,) is in."""
        return next((one for one in self._files if one.blend is not None and np.array_equal(one.blend, blend)), None)

    def other(self, used: MergeFile | None) -> MergeFile:
        """The file that may be written to while one is used."""
        free = next((one for one in self._files if one is not used), None)
        if free is None:
            free = self._kind(self._moe, self.folder / str(len(self._files)))
            self._files.append(free)
        return free


def _roomy(roots: Sequence[Path], wanted: int) -> Path:
    """Find the first folder with so much room."""
    for root in roots:
        if root.is_dir() and os.access(root, os.W_OK):
            with locked(root):
                for left in root.glob(f"{PREFIX}*"):
                    remove_if_abandoned(left)
            if shutil.disk_usage(root).free > wanted:
                return root
    raise OutputError(
        f"{wanted} bytes for two merges are not free in {' or '.join(map(str, roots))}; make room there, or "
        "name a folder that the engine reads, too (engine_folder)"
    )


def _removed(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
