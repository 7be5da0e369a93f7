"""The command line as a user runs it, of this tree: what is installed may be another one."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import tanbr as package
from processes import finished

Mistake: TypeAlias = Callable[..., str]  # the fixture `mistake`
TANBR = (sys.executable, "-m", "tanbr")


def environment(**more: str) -> dict[str, str]:
    """This process's environment without settings of tanbr, and with this tree."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TANBR_")}
    tree = {"PYTHONPATH": str(Path(package.__file__).parents[1])}
    return kept | tree | {"OMP_NUM_THREADS": "1", "TANBR_SERVER": "http://127.0.0.1:9"} | more


def tanbr(*arguments: str, cwd: Path, stdin: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command; no server answers unless one is named."""
    return finished([*TANBR, *arguments], cwd=cwd, stdin=stdin, env=environment(**settings))
