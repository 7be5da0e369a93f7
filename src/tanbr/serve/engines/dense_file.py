"""Dense checkpoints in memory that tanbr and an engine share: a merge is written there, and nowhere else.

There are two. The engine has loaded one; the next blend goes to the other, whose attention and embeddings are there
already, so that a merge writes what a blend changes. What the engine has is never written to.
"""

import fcntl
import mmap
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tanbr.errors import OutputError
from tanbr.merge import Moe
from tanbr.merge.skeleton import skeleton
from tanbr.merge.stream import finite
from tanbr.moe.checkpoint import SINGLE
from tanbr.moe.writing import NewTensor, copy_companions, header_of, locked, remove_if_abandoned
from tanbr.serve.backends.torch_eager import rest
from tanbr.types import Blend

SHARED = Path("/dev/shm")  # noqa: S108 - memory that processes share, where there is any
PREFIX = "tanbr-dense-"


class DenseFile:
    """A folder with one dense checkpoint, mapped into memory."""

    def __init__(self, moe: Moe, folder: Path) -> None:
        self.folder = folder
        self.blend: Blend | None = None  # (K,) that is in it, once it is whole
        tensors = tensors_of(moe)
        head = header_of(tensors)
        try:
            folder.mkdir(mode=0o755)
            with (folder / SINGLE).open("w+b") as file:
                os.posix_fallocate(file.fileno(), 0, len(head) + bytes_of(tensors))  # no room is said now, not later
                file.write(head)
                file.flush()
                mapped = mmap.mmap(file.fileno(), 0)
            skeleton(moe.plan, moe.checkpoint, device="meta").config.save_pretrained(folder)
            for companions in moe.source.companions:
                copy_companions(companions, folder)
        except OSError as error:
            raise OutputError(f"cannot write a dense checkpoint to {folder}: {error.strerror}") from None
        self._places: dict[str, Tensor] = {}
        start = len(head)
        for tensor in tensors:
            count = tensor.nbytes // tensor.dtype.itemsize
            place = torch.frombuffer(mapped, dtype=tensor.dtype, count=count, offset=start)
            self._places[tensor.name] = place.view(tensor.shape)
            start += tensor.nbytes
        self._filled = False  # whether what no blend changes is there

    def write(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:
        """Merge a blend (K,) into it, resting so that at most `share` of the time is work."""
        self.blend = None
        started = time.perf_counter()
        for name, tensor in moe.tensors(blend, into=self._places.__getitem__, changing=self._filled):
            finite(name, tensor)
            moe.release()
            started = rest(started, share)
        self._filled, self.blend = True, blend


class DenseFiles:
    """Two of them, in a folder that goes when this does; what a killed process left behind goes first."""

    def __init__(self, moe: Moe, *, folder: str | Path | None = None) -> None:
        """Take shared memory if there is enough of it, or a temporary folder; or the `folder` that is named."""
        self.nbytes = bytes_of(tensors_of(moe))  # of one
        root = _roomy([SHARED, Path(tempfile.gettempdir())] if folder is None else [Path(folder)], 2 * self.nbytes)
        with locked(root):  # nobody tidies up between a folder's making and its locking
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
            self.folder.chmod(0o755)  # an engine that cannot read its weights dies
            lock = os.open(self.folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
        self._end = weakref.finalize(self, _removed, self.folder, lock)
        self._moe = moe
        self._files: list[DenseFile] = []

    def close(self) -> None:
        """Remove them."""
        self._end()

    def holding(self, blend: Blend) -> DenseFile | None:
        """The file that a blend (K,) is in."""
        return next((one for one in self._files if one.blend is not None and np.array_equal(one.blend, blend)), None)

    def other(self, used: DenseFile | None) -> DenseFile:
        """The file that may be written to while one is used."""
        free = next((one for one in self._files if one is not used), None)
        if free is None:
            free = DenseFile(self._moe, self.folder / str(len(self._files)))
            self._files.append(free)
        return free


def tensors_of(moe: Moe) -> list[NewTensor]:
    """List the tensors of the dense model, as they are in its file."""
    dtypes = moe.plan.dtypes(moe.checkpoint)
    return [NewTensor(name, dtypes[name], moe.plan.shapes[name]) for name in moe.plan.targets()]


def bytes_of(tensors: Sequence[NewTensor]) -> int:
    """Add up what they take."""
    return sum(tensor.nbytes for tensor in tensors)


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
        f"{wanted} bytes for two dense checkpoints are not free in {' or '.join(map(str, roots))}; make room there, or "
        "name a folder that the engine reads, too (engine_folder)"
    )


def _removed(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
