"""A checkpoint on disk, opened lazily: its configuration, and its tensors as views of the mapped safetensors files.

Only headers are read until a view is used, and what is read stays in the page cache. Pickle files are never opened. A
checkpoint may come from anywhere: nothing in it is believed before it is checked.
"""

import hashlib
import json
import math
import mmap
import stat
import struct
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tanbr.errors import CheckpointError, TanbrError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
DIMENSIONS = 16  # more than any tensor has


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor is, and, where it is stored already, where it lies."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    file: int = 0  # which of the checkpoint's files
    start: int = 0  # byte in that file

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in the file."""
        return self.numel * self.dtype.itemsize


class TensorFile:
    """One safetensors file, mapped read-only."""

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        check_regular(path)
        try:
            with safe_open(path, "np"), path.open("rb") as file:  # safetensors' own checks: sizes, holes, overlaps
                (length,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(length))
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
        except (SafetensorError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} is corrupt or truncated ({error}); fetch the file again") from None
        self._data = 8 + length
        self._typed: dict[torch.dtype, Tensor] = {}
        self.specs = [self._spec(name, entry, number) for name, entry in header.items() if name != "__metadata__"]

    def _spec(self, name: str, entry: dict[str, Any], number: int) -> TensorSpec:
        dtype, shape, begin = DTYPES.get(entry["dtype"]), tuple(entry["shape"]), entry["data_offsets"][0]
        if dtype is None:
            raise CheckpointError(f"{self.path}: {name} has type {entry['dtype']}, which cannot be merged; convert it")
        if len(shape) > DIMENSIONS or max(shape, default=0) > len(self._map) or begin % dtype.itemsize:
            raise CheckpointError(f"{self.path}: the entry of {name} is corrupt; fetch the file again")
        return TensorSpec(name, dtype, shape, number, self._data + begin)

    def typed(self, dtype: torch.dtype) -> tuple[Tensor, int]:
        """View the whole file as one flat tensor of `dtype`, and the byte at which that tensor starts."""
        lead = self._data % dtype.itemsize  # tensors are aligned to the start of the data, not of the file
        if dtype not in self._typed:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # "not writable": as it should be
                count = (len(self._map) - lead) // dtype.itemsize
                self._typed[dtype] = torch.frombuffer(self._map, dtype=dtype, count=count, offset=lead)
        return self._typed[dtype], lead

    def release(self) -> None:
        """Let the kernel unmap the pages read so far; the next use maps them again from the page cache."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def digest(self) -> str:
        """SHA-256 of the file."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


class Checkpoint:
    """A folder with a `config.json` and safetensors files, whole or in shards."""

    settings_file = "config.json"

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = _read_config(self.path)
        index = _read_index(self.path)
        names = [SINGLE] if index is None else sorted(set(index.values()))
        self.files = [TensorFile(self.path / name, number) for number, name in enumerate(names)]
        self.specs = {spec.name: spec for file in self.files for spec in file.specs}
        lost = sorted(set(index or ()) - set(self.specs))
        if lost:
            raise CheckpointError(f"{self.path}: {len(lost)} tensors of the index are in no shard, {lost[0]} for one")

    @property
    def nbytes(self) -> int:
        """Size of all tensors."""
        return sum(spec.nbytes for spec in self.specs.values())

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the weights."""
        digests = [file.digest() for file in self.files]
        return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

    def tensor(self, name: str) -> Tensor:
        """View a whole tensor, read-only."""
        spec = self.specs[name]
        return self.blocks([(name, 0)], spec.numel)[0].view(spec.shape)

    def blocks(self, starts: Sequence[tuple[str, int]], count: int) -> Tensor:
        """View `count` elements from each (tensor, first element), at equal distances in one file: (rows, count)."""
        addresses = [self.address(*start) for start in starts]
        spec = self.specs[starts[0][0]]
        flat, lead = self.files[spec.file].typed(spec.dtype)
        step = addresses[1][1] - addresses[0][1] if len(addresses) > 1 else count
        size = spec.dtype.itemsize
        return flat.as_strided((len(starts), count), (step // size, 1), (addresses[0][1] - lead) // size)

    def address(self, name: str, first: int) -> tuple[int, int]:
        """Find the file and byte of element `first` of a tensor."""
        spec = self.specs[name]
        return spec.file, spec.start + first * spec.dtype.itemsize

    def release(self) -> None:
        """Unmap all pages read so far (they stay in the page cache)."""
        for file in self.files:
            file.release()

    def digests(self) -> dict[str, str]:
        """SHA-256 of every file the model is made of."""
        return digests_of(self.path / self.settings_file, self.files)


def digests_of(settings: Path, files: Iterable[TensorFile]) -> dict[str, str]:
    """SHA-256 of a file of settings and of weights, by their names."""
    digest = hashlib.sha256(settings.read_bytes()).hexdigest()
    return {settings.name: digest} | {file.path.name: file.digest() for file in files}


def check_regular(path: Path) -> None:
    """Refuse what is no regular file: reading a pipe or a device may never end."""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; fetch the whole checkpoint again") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if not regular:
        raise CheckpointError(f"{path} is no regular file; a checkpoint is config.json and *.safetensors files")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that a stranger wrote."""
    check_regular(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return value


@contextmanager
def understood(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn whatever a crafted configuration makes transformers, torch or us raise into one sentence."""
    try:
        yield
    except TanbrError:
        raise
    except Exception as error:  # a hostile configuration can raise anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise CheckpointError(f"{checkpoint.path}: config.json and tensors make up no model: {reason}") from error


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a folder; a checkpoint is a folder with config.json and *.safetensors")
    if not (path / "config.json").exists():
        raise CheckpointError(f"{path} has no config.json, so its architecture is unknown")
    config = read_json(path / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"{path / 'config.json'} names no model_type, so its architecture is unknown")
    return config


def _read_index(path: Path) -> dict[str, str] | None:
    """Read which tensor is in which shard; None for a checkpoint of one file."""
    if (path / INDEX).exists():
        names = read_json(path / INDEX).get("weight_map")
        if isinstance(names, dict) and all(isinstance(one, str) and Path(one).name == one for one in names.values()):
            return names
        raise CheckpointError(f"{path / INDEX} is corrupt; fetch it again")  # a shard lies beside its index
    if (path / SINGLE).exists():
        return None
    pickles = sorted(file.name for file in path.iterdir() if file.suffix in PICKLES)
    if pickles:
        raise CheckpointError(
            f"{path} holds pickle files ({pickles[0]}), which can run code; save them by model.save_pretrained(folder)"
        )
    raise CheckpointError(f"{path} has neither {SINGLE} nor {INDEX}")


class FileWatch:
    """Remembers what mapped files were; a changed one would be read as garbage, or past its end as a crash."""

    def __init__(self, files: Iterable[TensorFile]) -> None:
        self._stamps = {file.path: _stamp(file.path) for file in files}

    def check(self) -> None:
        """Raise CheckpointError if a file is no longer what it was."""
        for path, stamp in self._stamps.items():
            if _stamp(path) != stamp:
                raise CheckpointError(f"{path} has changed since it was opened; put the old file back, or restart")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
