"""Writing a checkpoint: a new folder that appears whole or not at all, tensors streamed into a safetensors file."""

import errno
import fcntl
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tanbr.errors import OutputError
from tanbr.moe.checkpoint import DTYPE_NAMES, SINGLE, TensorSpec

Progress: TypeAlias = Callable[[int, int], None]  # (tensors done, tensors in all)

UNFINISHED = ".unfinished"  # how a folder ends that is being written
COMPANIONS = (  # a tokenizer, and whatever else belongs to a checkpoint but is no weight
    "*token*.json", "*.model", "vocab.txt", "vocab.json", "merges.txt", "chat_template.jinja",
    "generation_config.json", "LICENSE*", "modules.json", "*_Pooling/config.json", "*sentence*.json",
)  # fmt: skip


def silent(done: int, total: int) -> None:
    """Show no progress."""


@contextmanager
def new_folder(out: str | Path) -> Iterator[Path]:
    """Make a folder to write in; it becomes `out` at the end, or vanishes if anything goes wrong.

    What a killed process left on the way to the same `out` is removed first. A folder that is written to is locked, and
    the kernel unlocks it when its process ends: a live one is never touched.
    """
    out = Path(out)
    if out.exists():
        raise OutputError(f"{out} exists already; name a new folder, or remove it first")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with locked(out.parent):  # no other process removes the folder before it is locked
            for left in out.parent.iterdir():
                if left.name.startswith(f".{out.name}.") and left.name.endswith(UNFINISHED):
                    remove_if_abandoned(left)
            work = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.", suffix=UNFINISHED))
            lock = os.open(work, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        raise OutputError(f"cannot write to {out.parent}: {error.strerror}") from None
    try:
        yield work
        work.chmod(0o755)
        work.replace(out)
    except OSError as error:
        what = "the disk is full" if error.errno == errno.ENOSPC else str(error.strerror or error)
        raise OutputError(f"cannot write {out}: {what}; nothing was left behind") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(lock)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep others who lock a folder out."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_if_abandoned(folder: Path) -> None:
    """Remove a work folder whose process is gone: nobody holds its lock."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        pass  # somebody writes there
    finally:
        os.close(descriptor)


def write_tensors(folder: Path, tensors: Sequence[TensorSpec], chunks: Iterable[Tensor]) -> None:
    """Write a checkpoint's tensors, whose values come as consecutive chunks, in the order of `tensors`."""
    write_file(folder / SINGLE, tensors, iter(chunks))


def write_file(path: Path, tensors: Sequence[TensorSpec], chunks: Iterator[Tensor]) -> None:
    """Write one safetensors file; a tensor comes in one or more chunks, first dimension first."""
    with path.open("wb") as file:
        file.write(header_of(tensors))
        for tensor in tensors:
            written = 0
            while written < tensor.nbytes:
                chunk = next(chunks)
                written += file.write(chunk.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def header_of(tensors: Sequence[TensorSpec]) -> bytes:
    """Make what a safetensors file begins with: where each of its tensors lies, one after the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.nbytes
        place = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        header[tensor.name] = place
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_json(path: Path, value: Any) -> None:
    """Write JSON as people read it."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def copy_companions(source: Path, folder: Path) -> None:
    """Copy what belongs to a checkpoint but is no weight."""
    for file in sorted({file for pattern in COMPANIONS for file in source.glob(pattern)}):
        if file.is_file():
            place = folder / file.relative_to(source)
            place.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, place)
