"""One file holds a monitor's whole state: named arrays, and a description that says what they are."""

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tanbr.errors import OutputError, StateError

FORMAT = 1
_DESCRIPTION = "description"


def write(path: str | Path, description: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """Write atomically: a reader sees the old file or the new one."""
    path = Path(path)
    text = np.array(json.dumps({"format": FORMAT, **description}))
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            np.savez_compressed(file, allow_pickle=False, **{_DESCRIPTION: text}, **arrays)
        temporary.replace(path)
    except OSError as error:
        if temporary:
            temporary.unlink(missing_ok=True)
        raise OutputError(f"cannot write the monitor's state to {path}: {error.strerror}") from None


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read what `write` wrote; anything else is a `StateError`."""
    try:
        with Path(path).open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = dict(file)
        description = json.loads(str(arrays.pop(_DESCRIPTION)))
    except FileNotFoundError:
        raise StateError(f"no monitor's state at {path}") from None
    except (OSError, ValueError, KeyError, EOFError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise StateError(f"{path} is not a monitor's state, or is damaged: {error}") from None
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise StateError(f"{path} is of a format this version cannot read (expected format {FORMAT})")
    return description, arrays


def check_alike(arrays: dict[str, NDArray[Any]], expected: dict[str, NDArray[Any]], path: str | Path) -> None:
    """Refuse arrays that are not of the names, types and shapes expected; one that starts empty may have any size."""
    if arrays.keys() != expected.keys():
        odd = sorted(arrays.keys() ^ expected.keys())
        raise StateError(f"{path} is damaged: {odd[0]!r} is missing or does not belong there")
    for name, array in arrays.items():
        like = expected[name]
        shaped = array.shape == like.shape if like.size > 1 else array.ndim == like.ndim
        if array.dtype != like.dtype or not shaped:
            raise StateError(f"{path} is damaged: {name!r} must be {like.dtype} of shape {like.shape}")
