"""A check at the end of a run: it fails, and names every process, port and file that the tests left behind."""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

BEFORE = pytest.StashKey[set[str]]()
LEFT = pytest.StashKey[list[str]]()
NOT_OURS = {".ses"}  # ONNX Runtime writes it into TMPDIR when it is imported
LAST_SECONDS = 10  # for processes that were killed a moment ago; a busy machine takes a while


def pytest_configure(config: pytest.Config) -> None:
    """Give the run a temporary folder of its own, which also marks every process that is started in the run."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that tests end what they started
    config.stash[LEFT] = []
    if not hasattr(config, "workerinput"):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # for tmp_path, which pytest keeps
        tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="tanbr-tests-")
        config.stash[BEFORE] = changed(config.rootpath)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker of pytest-xdist found."""
    node.config.stash[LEFT] += getattr(node, "workeroutput", {}).get("left", [])


@pytest.hookimpl(trylast=True)  # after the workers have ended
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    left = config.stash[LEFT] + [f"port {port} is open" for port in ports()]
    if hasattr(config, "workerinput"):
        config.workeroutput["left"] = left
        return
    temporary = Path(os.environ["TMPDIR"])
    for process, started_by in processes(temporary):
        left.append(f"process {process.pid} of {started_by}: {' '.join(process.cmdline())}")
        process.kill()
    left += [f"{path} was not removed" for path in sorted(temporary.iterdir()) if path.name not in NOT_OURS]
    left += [f"changed in the checkout: {line}" for line in sorted(changed(config.rootpath) - config.stash[BEFORE])]
    shutil.rmtree(temporary, ignore_errors=True)
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if reporter := config.pluginmanager.get_plugin("terminalreporter"):
            reporter.write_line("")  # ends the line of dots
            for line in left:
                reporter.write_line(f"ERROR left behind: {line}", red=True)


def ports() -> list[int]:
    """Ports that this process listens on."""
    return [one.laddr.port for one in psutil.Process().net_connections("inet") if one.status == psutil.CONN_LISTEN]


def processes(temporary: Path) -> list[tuple[psutil.Process, str]]:
    """Processes that tests of this run started, orphans too, each with the name of its test."""
    found = {}
    for one in psutil.process_iter(["environ", "cmdline"]):
        own = one.info["environ"] or {}
        tracker = any("resource_tracker" in word for word in one.info["cmdline"] or ())  # ends with its parent
        if own.get("TMPDIR") == str(temporary) and "PYTEST_CURRENT_TEST" in own and not tracker:
            found[one] = own["PYTEST_CURRENT_TEST"]
    _, alive = psutil.wait_procs(list(found), timeout=LAST_SECONDS)
    return [(one, found[one]) for one in alive if one.status() != psutil.STATUS_ZOMBIE]


def changed(root: Path) -> set[str]:
    """What git says of the checkout but for figures, which tests write on purpose; nothing without git."""
    command = ["git", "status", "--porcelain", "--untracked-files=all", "--", ".", ":!docs/results"]
    try:
        return set(subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout.splitlines())
    except FileNotFoundError:
        return set()
