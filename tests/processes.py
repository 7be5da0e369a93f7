"""Processes that tests start. None outlives its block, whatever happens in it."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def started(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process in a process group of its own; when the block ends, kill what is left of the group."""
    with subprocess.Popen(command, text=True, start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def finished(
    command: Sequence[str | Path], *, stdin: str = "", timeout: float = 240, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a process to its end."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with started(command, **pipes, **options) as process:
        out, err = process.communicate(stdin, timeout=timeout)
    return subprocess.CompletedProcess(command, process.returncode, out, err)
