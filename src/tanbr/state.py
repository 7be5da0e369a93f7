"""A state as one file: plain arrays and a JSON header, checked by version and checksum, written atomically.

What changes in a router or a monitor is one frozen value; `to_arrays` names its arrays, `from_arrays` builds an equal
value.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tanbr.errors import StateError
from tanbr.files import write_atomically

VERSION = 1
HEADER = "_header"
PACKED = "_packed"  # what holds other arrays
MOST_DEFLATED = 1032  # bytes that one byte of a deflated member can stand for
Arrays = dict[str, NDArray[Any]]
Value = TypeVar("Value")


def write_state(path: str | Path, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write header and arrays to `path`; an old file stays whole until the new one is."""
    text = json.dumps({"version": VERSION, "checksum": _checksum(header, arrays), "header": header})
    members = {HEADER: np.frombuffer(text.encode(), dtype=np.uint8), **arrays}
    write_atomically(path, _zipped(members), mode=0o600)  # what was learned of users' texts


def compressed(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Make one array of many, which `read_state` takes apart: who keeps it need not compress again what is the same."""
    return {PACKED: np.frombuffer(_zipped(arrays, zipfile.ZIP_DEFLATED), dtype=np.uint8)}


def _zipped(arrays: Mapping[str, NDArray[Any]], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method, compresslevel=1) as archive:  # a higher level takes twice as long
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
    return buffer.getvalue()


def read_state(path: str | Path) -> tuple[dict[str, Any], Arrays]:
    """Read what `write_state` wrote; anything else is one `StateError`."""
    path = Path(path)
    if not path.exists():
        raise StateError(f"there is no saved state at {path}")
    if not path.is_file():
        raise StateError(f"{path} is no file, and a saved state is one file")
    try:
        arrays = _members(path.read_bytes())
        label = json.loads(arrays.pop(HEADER).tobytes())
        version, header = label["version"], dict(label["header"])
        whole = label["checksum"] == _checksum(header, arrays)
        if whole and PACKED in arrays:
            arrays |= _members(arrays.pop(PACKED).tobytes())
    except Exception as error:  # damaged bytes can make the readers of zip, arrays and JSON raise anything
        said = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise StateError(f"{path} is not a whole state ({said}); restore it from a copy") from None
    if version != VERSION:
        raise StateError(f"{path} has state version {version}, this tanbr reads {VERSION}; use the tanbr that wrote it")
    if not whole:
        raise StateError(f"{path} is damaged: its checksum does not match; restore it from a copy")
    return header, arrays


def to_arrays(value: Any, prefix: str = "") -> Arrays:
    """Name the arrays of a frozen value: fields and keys by name, what is nested behind a dot, tuples by number."""
    if is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, Mapping):
        parts = dict(value)
    elif isinstance(value, tuple):
        parts = {str(place): part for place, part in enumerate(value)}
    else:
        return {prefix: np.asarray(value)}
    named = (to_arrays(part, f"{prefix}.{name}" if prefix else name) for name, part in parts.items())
    return {name: array for arrays in named for name, array in arrays.items()}


def from_arrays(like: Value, arrays: Arrays, *, sized: bool = False, source: str | Path = "the state") -> Value:
    """Build a value of the same make as `like` from what `to_arrays` gave: of the same names and types, and finite.

    Where it is `sized`, of the same shapes too; but an axis that starts empty may have any length, and so may an array
    that starts with one number.
    """
    expected = to_arrays(like)
    if arrays.keys() != expected.keys():
        odd = sorted(arrays.keys() ^ expected.keys())
        raise StateError(f"{source} is damaged: {odd[0]!r} is missing or does not belong there")
    for name, array in arrays.items():
        wanted = expected[name]
        free = not sized or wanted.size == 1
        shaped = array.ndim == wanted.ndim and all(
            free or length in (0, got) for got, length in zip(array.shape, wanted.shape, strict=True)
        )
        if array.dtype != wanted.dtype or not shaped:
            raise StateError(f"{source} is damaged: {name!r} must be {wanted.dtype} of shape {wanted.shape}")
        if not np.isfinite(array).all():
            raise StateError(f"{source} is damaged: {name!r} must be finite")
    return _built(like, arrays, "")


def _built(like: Any, arrays: Arrays, name: str) -> Any:
    if is_dataclass(like) and not isinstance(like, type):
        inner = {f.name: f"{name}.{f.name}" if name else f.name for f in fields(like)}
        return replace(like, **{field: _built(getattr(like, field), arrays, at) for field, at in inner.items()})
    if isinstance(like, Mapping):
        return {key: _built(part, arrays, f"{name}.{key}") for key, part in like.items()}
    if isinstance(like, tuple):
        return tuple(_built(part, arrays, f"{name}.{place}") for place, part in enumerate(like))
    return arrays[name].copy() if isinstance(like, np.ndarray) else type(like)(arrays[name])


def _members(content: bytes) -> Arrays:
    """Read a zip of arrays, allocating no more than its bytes can stand for."""
    arrays = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            most = member.compress_size * (MOST_DEFLATED if member.compress_type == zipfile.ZIP_DEFLATED else 1)
            if member.file_size > most or member.compress_size > len(content):
                raise ValueError(f"{member.filename!r} claims {member.file_size} bytes and has {member.compress_size}")
            arrays[member.filename.removesuffix(".npy")] = _array(archive.read(member))
    return arrays


def _array(content: bytes) -> NDArray[Any]:
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_column, dtype = read(stream)
    if (
        dtype.kind not in "biuf"
        or prod(shape) * dtype.itemsize != len(content) - stream.tell()
        or min(shape, default=0) < 0
    ):
        raise ValueError(f"an array of {dtype} and shape {shape} does not take {len(content) - stream.tell()} bytes")
    return np.frombuffer(content, dtype, offset=stream.tell()).reshape(shape, order="F" if by_column else "C").copy()


def _checksum(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
