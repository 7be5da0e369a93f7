import subprocess
import sys

import psutil
import pytest

from processes import finished, started

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_process_and_its_children_end_with_the_block_whatever_happens() -> None:
    seen = []

    def fail() -> None:
        with started([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as process:
            assert process.stdout
            seen.append((process, psutil.Process(int(process.stdout.readline()))))
            raise RuntimeError("amid it")

    with pytest.raises(RuntimeError, match="amid it"):
        fail()
    [(process, child)] = seen
    assert process.returncode == -9
    psutil.wait_procs([child], timeout=60)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_what_a_process_says_is_kept() -> None:
    program = "import sys; print(sys.stdin.read()); sys.exit('bad')"
    done = finished([sys.executable, "-c", program], stdin="good")
    assert (done.returncode, done.stdout, done.stderr) == (1, "good\n", "bad\n")
