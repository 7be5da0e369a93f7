"""A copy of a server's state that a server can start from, taken while one is running."""

import os
import shutil
import sqlite3
from pathlib import Path

from tanbr.errors import OutputError, StateError
from tanbr.serve.journal import STATES
from tanbr.serve.store import FILE

TRIES = 50  # a slot may turn while its states are copied


def back_up(state: str | Path, out: str | Path) -> Path:
    """Copy the state folder of a server, running or not, to the new folder `out`."""
    state, out = Path(state), Path(out)
    if not (state / FILE).is_file():
        raise StateError(f"{state} holds no state of a server; give the folder of its --state")
    if out.exists():
        raise OutputError(f"{out} exists already; choose a new folder")
    partial = out.with_name(f".{out.name}.partial")
    try:
        for _ in range(TRIES):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(mode=0o700, parents=True)
            if _copied(state, partial):
                partial.replace(out)
                return out
    except (OSError, sqlite3.Error) as error:
        raise OutputError(f"cannot copy {state} to {out}: {error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    raise StateError(f"the states that {state / FILE} names are not there; restore the folder from an older copy")


def _copied(state: Path, out: Path) -> bool:
    """Copy the store as of one instant, then the states it names; False if one of them went meanwhile."""
    os.close(os.open(out / FILE, os.O_CREAT | os.O_RDWR, 0o600))  # before SQLite makes it readable to others
    source, target = sqlite3.connect(state / FILE, timeout=10.0), sqlite3.connect(out / FILE)
    try:
        source.backup(target)
        named = target.execute(f"SELECT value FROM meta WHERE key IN {STATES}").fetchall()  # noqa: S608 - two words
    finally:
        source.close()
        target.close()
    try:
        for (name,) in named:
            shutil.copy2(state / name, out / name)
    except FileNotFoundError:
        return False
    return True
