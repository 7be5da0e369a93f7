"""Servers as real processes."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from serving.client import ask

T = TypeVar("T")
HERE = Path(__file__).parent.parent
TOKEN = "an-operators-token-of-the-benchmark"
ENVIRONMENT = {"TANBR_ADMIN_TOKEN": TOKEN, "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def process(arguments: list[str], *, log: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a Python process until the block ends."""
    with log.open("w") as errors:
        running = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=HERE,
            env=os.environ | ENVIRONMENT | options.pop("environment", {}),
            stderr=errors,
            stdout=options.pop("stdout", errors),
            text=True,
            start_new_session=True,
            **options,
        )
        try:
            yield running
        finally:
            running.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)  # its own session: whatever it left behind
            running.wait()


def wait_ready(
    port: int, running: subprocess.Popen[str], log: Path, seconds: float = 600.0, path: str = "/readyz"
) -> None:
    """Wait until a server answers."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if running.poll() is not None:
            raise RuntimeError(f"the server ended: {log.read_text()[-2000:]}")
        try:
            if ask(port, "GET", path)[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"no server within {seconds} s: {log.read_text()[-2000:]}")


@contextmanager
def tanbr(folder: Path | None, work: Path, **serve: Any) -> Iterator[tuple[int, int]]:
    """`tanbr serve` on a checkpoint: its port and process id."""
    port, name = free_port(), f"tanbr-{time.time_ns()}"
    values = {"slot_seconds": 3600, "batch": 32, "queue": 4096} | serve
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    config = work / f"{name}.toml"
    config.write_text("\n".join(["[serve]", *lines, ""]))
    command = [str(Path(sys.executable).with_name("tanbr")), "serve", *([str(folder)] if folder else [])]
    command += ["--force", "--config", str(config), "--port", str(port), "--state", str(work / name)]
    with process(command, log=work / f"{name}.log") as running:
        wait_ready(port, running, work / f"{name}.log")
        yield port, running.pid


@contextmanager
def started(command: list[str], log: Path, *, environment: dict[str, str]) -> Iterator[int]:
    """Run a server's command with a port of its own; the port."""
    port = free_port()
    with process([*command, "--port", str(port)], log=log, environment=environment) as running:
        wait_ready(port, running, log)
        yield port


@contextmanager
def rival(kind: str, folder: Path, work: Path, *, threads: int) -> Iterator[tuple[int, int]]:
    """A rival's server: its port and process id."""
    port, log = free_port(), work / f"{kind}-{threads}.log"
    arguments = ["-m", "serving.rivals", kind, str(folder), str(port), str(threads)]
    with process(arguments, log=log) as running:
        wait_ready(port, running, log, path="/health" if kind == "litserve" else "/readyz")
        yield port, running.pid


def entered(stack: ExitStack, servers: Iterable[AbstractContextManager[T]]) -> list[T]:
    """Start servers all at once; what each gives."""

    def enter(server: AbstractContextManager[T]) -> T:
        found = server.__enter__()
        stack.push(server)
        return found

    with ThreadPoolExecutor() as pool:
        return list(pool.map(enter, servers))


@contextmanager
def alone(pid: int, others: Iterable[int]) -> Iterator[None]:
    """Stop the other servers meanwhile: one that waits for requests may use cores all the same, as LitServe does."""
    stopped = [other for other in others if other != pid]
    for other in stopped:
        os.killpg(other, signal.SIGSTOP)  # each has a session of its own
    try:
        yield
    finally:
        for other in stopped:
            os.killpg(other, signal.SIGCONT)


class Bare:
    """The bare model's process."""

    def __init__(self, running: subprocess.Popen[str]) -> None:
        self._running = running
        assert running.stdout is not None
        running.stdout.readline()

    def __call__(self, size: int, batches: int, *, own: bool = False) -> list[float]:
        """Seconds of each batch of the forward pass alone, transformers' or `own`."""
        assert self._running.stdin is not None
        assert self._running.stdout is not None
        self._running.stdin.write(json.dumps({"size": size, "batches": batches, "own": own}) + "\n")
        self._running.stdin.flush()
        return [float(value) for value in json.loads(self._running.stdout.readline())]


@contextmanager
def bare(folder: Path, work: Path, *, threads: int) -> Iterator[Bare]:
    """The model alone in a process."""
    arguments = ["-m", "serving.bare", str(folder), str(threads)]
    with process(arguments, log=work / "bare.log", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        yield Bare(running)


def resident(pid: int) -> dict[str, float]:
    """Memory of a process and its children in MB: resident, and resident without pages of files."""
    total = {"rss": 0.0, "anonymous": 0.0}
    for one in [pid, *_children(pid)]:
        fields = dict(
            line.split(":", 1) for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()[1:] if ":" in line
        )
        total["rss"] += int(fields["Rss"].split()[0]) / 1024
        total["anonymous"] += int(fields["Anonymous"].split()[0]) / 1024
    return total


def processor_seconds(pid: int) -> float:
    """Processor time that a process and its children have taken."""
    ticks = 0
    for one in [pid, *_children(pid)]:
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # in user and in system mode
    return ticks / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            found += map(int, (thread / "children").read_text().split())
    return found + [grand for child in found for grand in _children(child)]
