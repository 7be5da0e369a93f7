"""A state as one file: plain arrays and a JSON header, checked by version and checksum, written atomically."""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tanbr.errors import StateError
from tanbr.files import write_atomically

VERSION = 1
HEADER = "_header"
Arrays = dict[str, NDArray[Any]]


def write_state(
    path: str | Path, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], *, compress: bool = False
) -> None:
    """Write header and arrays to `path`; an old file stays whole until the new one is."""
    text = json.dumps({"version": VERSION, "checksum": _checksum(header, arrays), "header": header})
    buffer = io.BytesIO()
    save = np.savez_compressed if compress else np.savez
    save(buffer, **{HEADER: np.frombuffer(text.encode(), dtype=np.uint8)}, **arrays)  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())


def read_state(path: str | Path) -> tuple[dict[str, Any], Arrays]:
    """Read what `write_state` wrote; anything else is one `StateError`."""
    try:
        with np.load(io.BytesIO(Path(path).read_bytes()), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        label = json.loads(arrays.pop(HEADER).tobytes())
        version, checksum, header = label["version"], label["checksum"], dict(label["header"])
    except FileNotFoundError:
        raise StateError(f"there is no saved state at {path}") from None
    except (OSError, ValueError, KeyError, EOFError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise StateError(f"{path} is not a whole state ({error}); restore it from a copy") from None
    if version != VERSION:
        raise StateError(f"{path} has state version {version}, this tanbr reads {VERSION}; use the tanbr that wrote it")
    if checksum != _checksum(header, arrays):
        raise StateError(f"{path} is damaged: its checksum does not match; restore it from a copy")
    return header, arrays


def check_alike(arrays: Arrays, expected: Arrays, path: str | Path) -> None:
    """Refuse arrays that are not of the names, types and shapes expected; one that starts empty may have any size."""
    if arrays.keys() != expected.keys():
        odd = sorted(arrays.keys() ^ expected.keys())
        raise StateError(f"{path} is damaged: {odd[0]!r} is missing or does not belong there")
    for name, array in arrays.items():
        like = expected[name]
        shaped = array.shape == like.shape if like.size > 1 else array.ndim == like.ndim
        if array.dtype != like.dtype or not shaped:
            raise StateError(f"{path} is damaged: {name!r} must be {like.dtype} of shape {like.shape}")


def _checksum(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
