"""What a start costs: seconds until a server is ready, seconds of the processor, and memory."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from serving import processes
from serving.models import checkpoint
from serving.rounds import spread


def start(size: str | None, work: Path, _before: object, *, rounds: int) -> dict[str, Any]:
    """Start a server several times over one state: the first start, and the later ones with their memory in MB."""
    served = [] if size is None else [str(checkpoint(size, work))]
    command = ["-m", "tanbr", "serve", *served, "--force", "--state", str(work / f"start-{size}")]
    found = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        with processes.started(command, work / "start.log") as (_, pid):
            ready = time.perf_counter() - began
            found.append((ready, processes.processor_seconds(pid), processes.resident(pid)["rss"]))
    names = ("seconds", "processor_seconds", "resident_mb")
    again = {name: spread(list(values)) for name, values in zip(names, zip(*found[1:], strict=True), strict=True)}
    first = dict(zip(names, found[0], strict=True))
    return {"size": size or "embedded", "help_processor_seconds": _help(rounds), "first": first, "again": again}


def _help(rounds: int) -> dict[str, float]:
    """Ask for `tanbr --help`."""
    taken = []
    for _ in range(rounds):
        before = os.times()
        subprocess.run([sys.executable, "-m", "tanbr", "--help"], check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        taken.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return spread(taken)
