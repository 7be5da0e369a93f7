"""Files that tanbr and an engine share, in memory if there is room: each merge is written in the form the engine loads.

There are two files. The engine has loaded one; the next blend goes to the other. What the engine has is never written
to.
"""

import fcntl
import mmap
import os
import shutil
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tanbr.errors import OutputError
from tanbr.merge import Moe
from tanbr.merge.blend import finite
from tanbr.merge.skeleton import skeleton
from tanbr.merge.sources.one_adapter import export_adapter, joinable
from tanbr.moe.checkpoint import SINGLE, TensorSpec
from tanbr.moe.writing import copy_companions, header_of, locked, remove_if_abandoned
from tanbr.serve.backends.torch_eager import rest
from tanbr.types import Blend

SHARED = Path("/dev/shm")  # noqa: S108 - memory that processes share, where there is any
PREFIX = "tanbr-merge-"


class MergeFile(ABC):
    """One merge as an engine loads it."""

    def __init__(self, moe: Moe, folder: Path) -> None:  # noqa: ARG002 - for subclasses
        self.folder = folder  # that the engine is told
        self.blend: Blend | None = None  # (K,) that is in it, once it is complete

    @staticmethod
    @abstractmethod
    def room(moe: Moe) -> int:
        """Give the bytes that a merge takes, at most."""

    def write(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:
        """Merge a blend (K,) into it, resting so that at most `share` of the time is work."""
        self.blend = None
        self._write(moe, blend, share)
        self.blend = blend

    @abstractmethod
    def _write(self, moe: Moe, blend: Blend, share: float) -> None:
        """Replace what is in it."""


class DenseFile(MergeFile):
    """A dense checkpoint, mapped into memory: what no blend changes is written once, the rest with every merge."""

    def __init__(self, moe: Moe, folder: Path) -> None:
        super().__init__(moe, folder)
        tensors = tensors_of(moe)
        head = header_of(tensors)
        try:
            folder.mkdir(mode=0o755)
            with (folder / SINGLE).open("w+b") as file:
                os.posix_fallocate(file.fileno(), 0, len(head) + self.room(moe))  # a full disk fails now, not later
                file.write(head)
                file.flush()
                mapped = mmap.mmap(file.fileno(), 0)
            skeleton(moe.plan, device="meta").config.save_pretrained(folder)
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

    @staticmethod
    def room(moe: Moe) -> int:
        """Give the bytes of the dense model."""
        return sum(tensor.nbytes for tensor in tensors_of(moe))

    def _write(self, moe: Moe, blend: Blend, share: float) -> None:
        started = time.perf_counter()
        for name, tensor in moe.tensors(blend, into=self._places.__getitem__, changing=self._filled):
            finite(name, tensor)
            moe.release()
            started = rest(started, share)
        self._filled = True


class AdapterFile(MergeFile):
    """A blend of adapters as one adapter. Each blend gets a new folder.

    An engine may read an adapter again at any time, so a path must mean the same weights as long as it exists.
    """

    def __init__(self, moe: Moe, folder: Path) -> None:
        """Write below `folder`, and remove the blend before."""
        super().__init__(moe, folder)
        self._place, self._written = folder, 0

    @staticmethod
    def room(moe: Moe) -> int:
        """Give the bytes of an adapter that holds all experts, every module at the highest rank, in float32."""
        each = [list(adds.values()) for adds in joinable(moe).factors.values()]
        rank = max(sum(one.down.shape[0] for one in adds) for adds in each)
        return 4 * rank * sum(sum(adds[0].shape) for adds in each)

    def _write(self, moe: Moe, blend: Blend, share: float) -> None:
        old, started = self.folder, time.perf_counter()
        self._written += 1
        self.folder = export_adapter(moe, self._place / str(self._written), blend=blend, certify=False)
        if old != self._place:
            shutil.rmtree(old, ignore_errors=True)
        moe.release()
        rest(started, share)


class MergeFiles:
    """Two merge files, in a folder that is removed with this object; first, folders of killed processes are removed."""

    def __init__(self, moe: Moe, kind: type[MergeFile], *, folder: str | Path | None = None) -> None:
        """Take shared memory if there is enough, or a temporary folder; or the `folder` that is named."""
        self.nbytes = kind.room(moe)  # of one
        root = _roomy([SHARED, Path(tempfile.gettempdir())] if folder is None else [Path(folder)], 2 * self.nbytes)
        with locked(root):  # nobody tidies up before the new folder is locked
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
            self.folder.chmod(0o755)  # an engine that cannot read its weights dies
            lock = os.open(self.folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
        self._end = weakref.finalize(self, _remove, self.folder, lock)
        self._moe, self._kind = moe, kind
        self._files: list[MergeFile] = []

    def close(self) -> None:
        """Remove them."""
        self._end()

    def holding(self, blend: Blend) -> MergeFile | None:
        """Find the file that a blend (K,) is in."""
        return next((one for one in self._files if one.blend is not None and np.array_equal(one.blend, blend)), None)

    def other(self, used: MergeFile | None) -> MergeFile:
        """Give the file that may be written to while one is used."""
        free = next((one for one in self._files if one is not used), None)
        if free is None:
            free = self._kind(self._moe, self.folder / str(len(self._files)))
            self._files.append(free)
        return free


def tensors_of(moe: Moe) -> list[TensorSpec]:
    """List the tensors of the dense model, as they are in its file."""
    return list(moe.plan.specs.values())


def _roomy(roots: Sequence[Path], wanted: int) -> Path:
    """Find the first folder with so many bytes free."""
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


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
