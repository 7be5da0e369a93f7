"""The command line as a user runs it."""

import subprocess
import sys
from pathlib import Path

TANBR = str(Path(sys.executable).with_name("tanbr"))


def tanbr(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TANBR, *arguments], capture_output=True, text=True, cwd=cwd, timeout=240)
