"""Files that appear whole or not at all."""

import os
import tempfile
from pathlib import Path

from tanbr.errors import OutputError


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written to before the work that would be lost."""
    write_atomically(folder / ".writable", "").unlink()


def write_atomically(path: str | Path, data: bytes | str, *, mode: int = 0o644) -> Path:
    """Write `data` beside `path` and move it there in one step; on any failure what was there before stays.

    The file is its owner's alone until it is whole, and has `mode` from then on.
    """
    path = Path(path)
    content = data.encode() if isinstance(data, str) else data
    partial: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(partial).chmod(mode)
        Path(partial).replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name, too: from now on what it replaces may be deleted
        finally:
            os.close(folder)
    except OSError as error:
        if partial is not None:
            Path(partial).unlink(missing_ok=True)
        raise OutputError(f"cannot write {path}: {error.strerror or error}; choose a folder you may write to") from None
    return path
