"""A run whose tests leave things behind is red and names them; one whose tests do not is green."""

import os
import sys
from pathlib import Path

import pytest

from processes import finished

LEAVING = """
import socket, subprocess, sys, tempfile
from pathlib import Path

kept = []

def test_leaving():
    kept.append(socket.create_server(("127.0.0.1", 0)))
    kept.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True))
    tempfile.mkdtemp(prefix="forgotten-")
    Path(__file__).with_name("dropped").touch()
"""
TIDY = """
import subprocess, sys, tempfile
from pathlib import Path

def test_tidy(tmp_path):
    (tmp_path / "kept").touch()
    subprocess.run([sys.executable, "-c", ""], check=True)
    with tempfile.TemporaryDirectory():
        pass
"""
ALONE = {
    "PYTHONPATH": str(Path(__file__).parent),
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}


@pytest.mark.parametrize(("program", "workers"), [(LEAVING, "0"), (LEAVING, "1"), (TIDY, "1")])
def test_what_is_left_behind_fails_the_run_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, workers: str
) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # the inner run has its own
    (tmp_path / "test_it.py").write_text(program)
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "conftest.py").write_text("import leftovers; leftovers.LAST_SECONDS = 0")  # nothing here ends by itself
    finished(["git", "init", "-q"], cwd=tmp_path)
    done = finished(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "leftovers", "-p", "no:cacheprovider", "-n", workers],
        cwd=tmp_path, env=os.environ | ALONE,
    )  # fmt: skip
    left = [line for line in done.stdout.splitlines() if line.startswith("ERROR left behind: ")]
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    if program == TIDY:
        assert (done.returncode, left) == (0, [])
        return
    assert done.returncode == 1
    port, process, folder, file = left
    assert port.endswith("is open")
    assert "of test_it.py::test_leaving (call): " in process
    assert "/forgotten-" in folder
    assert file.endswith("?? dropped")
