"""A dense checkpoint that an engine loads: what no blend changes is written once, the rest with every merge."""

import mmap
import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tanbr.errors import OutputError
from tanbr.merge import Moe
from tanbr.merge.skeleton import skeleton
from tanbr.merge.stream import finite
from tanbr.moe.checkpoint import SINGLE
from tanbr.moe.writing import NewTensor, copy_companions, header_of
from tanbr.serve.backends.torch_eager import rest
from tanbr.types import Blend


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

    @staticmethod
    def room(moe: Moe) -> int:
        """Bytes of the dense model."""
        return bytes_of(tensors_of(moe))

    def write(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:
        """Merge a blend (K,) into it, resting so that at most `share` of the time is work."""
        self.blend = None
        started = time.perf_counter()
        for name, tensor in moe.tensors(blend, into=self._places.__getitem__, changing=self._filled):
            finite(name, tensor)
            moe.release()
            started = rest(started, share)
        self._filled, self.blend = True, blend


def tensors_of(moe: Moe) -> list[NewTensor]:
    """List the tensors of the dense model, as they are in its file."""
    dtypes = moe.plan.dtypes(moe.checkpoint)
    return [NewTensor(name, dtypes[name], moe.plan.shapes[name]) for name in moe.plan.targets()]


def bytes_of(tensors: Sequence[NewTensor]) -> int:
    """Add up what they take."""
    return sum(tensor.nbytes for tensor in tensors)
