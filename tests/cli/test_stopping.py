import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.running import TANBR, environment
from processes import started


@pytest.mark.parametrize(
    ("send", "number"),
    [
        (os.killpg, signal.SIGINT),  # as a terminal does: to all processes of the command
        (os.kill, signal.SIGTERM),  # as a supervisor does
    ],
)
def test_a_stopped_simulation_says_that_it_goes_on(
    tmp_path: Path, send: Callable[[int, int], None], number: signal.Signals
) -> None:
    """Also if the parent ignores signals, as nohup and scripts do."""
    command = [*TANBR, "simulate", "--slots", "100000", "--methods", "average,random"]
    with started(
        ["sh", "-c", 'trap "" INT TERM; exec "$@"', "sh", *command], cwd=tmp_path, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as running:  # fmt: skip
        while not (tmp_path / "out/simulate/runs").exists() and running.poll() is None:
            time.sleep(0.1)  # until it works; Ctrl-C before that says no more than "stopped"
        send(running.pid, number)
        out, err = running.communicate(timeout=120)
    assert running.returncode == 130, err
    assert err == "stopped: what was done is kept; the same command goes on with the rest\n"
    assert "Traceback" not in out
