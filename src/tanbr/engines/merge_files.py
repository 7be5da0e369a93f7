"""Files that tanbr and an engine share, in memory if there is room: each merge is written in the form the engine loads.

What an engine has loaded is never written to.
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
from tanbr.moe.checkpoint import SINGLE
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

    def holds(self, blend: Blend) -> bool:
        """Whether a blend (K,) is in it."""
        return self.blend is not None and np.array_equal(self.blend, blend)

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
        tensors = list(moe.plan.specs.values())
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
        return sum(tensor.nbytes for tensor in moe.plan.specs.values())

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
        shapes = [next(iter(adds.values())).shape for adds in joinable(moe).factors.values()]
        return 4 * rank_of(moe, moe.num_experts) * sum(map(sum, shapes))

    def _write(self, moe: Moe, blend: Blend, share: float) -> None:
        old, started = self.folder, time.perf_counter()
        self._written += 1
        self.folder = export_adapter(moe, self._place / str(self._written), blend=blend, certify=False)
        if old != self._place:
            shutil.rmtree(old, ignore_errors=True)
        moe.release()
        rest(started, share)


class MergeFiles:
    """Merge files in a folder that is removed with this object; first, folders of killed processes are removed."""

    def __init__(self, moe: Moe, kind: type[MergeFile], *, count: int = 2, folder: str | Path | None = None) -> None:
        """Take shared memory if there is enough for `count`, or a temporary folder; or the `folder` that is named."""
        self.nbytes = kind.room(moe)  # of one
        roots = [SHARED, Path(tempfile.gettempdir())] if folder is None else [Path(folder)]
        root = _roomy(roots, count, count * self.nbytes)
        with locked(root):  # nobody tidies up before the new folder is locked
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
            self.folder.chmod(0o755)  # an engine that cannot read its weights dies
            lock = os.open(self.folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
        self._end = weakref.finalize(self, _remove, self.folder, lock)
        self._moe, self._kind, self._made = moe, kind, 0

    def close(self) -> None:
        """Remove them."""
        self._end()

    def new(self) -> MergeFile:
        """Make another one."""
        self._made += 1
        return self._kind(self._moe, self.folder / str(self._made))


def rank_of(moe: Moe, most: int) -> int:
    """Give the highest rank that a blend of at most so many adapters has."""
    ranks = [sorted(one.down.shape[0] for one in adds.values())[-most:] for adds in joinable(moe).factors.values()]
    return max(map(sum, ranks))


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
