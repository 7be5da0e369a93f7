"""The command line as a user runs it, of this tree: what is installed may be another one."""

import os
import subprocess
import sys
from pathlib import Path

import tanbr as package

TANBR = (sys.executable, "-m", "tanbr")


def environment(**more: str) -> dict[str, str]:
    """This process's environment without settings of tanbr, and with this tree."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TANBR_")}
    return kept | {"PYTHONPATH": str(Path(package.__file__).parents[1])} | more


def tanbr(*arguments: str, cwd: Path, stdin: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TANBR, *arguments], capture_output=True, text=True, cwd=cwd, timeout=240, input=stdin,
        env=environment(**settings),
    )  # fmt: skip
