"""Servers as real processes."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil

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
            [options.pop("python", sys.executable), *arguments],
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
        with contextlib.suppress(OSError):
            if ask(port, "GET", path)[0] == 200:
                return
        time.sleep(0.05)
    raise RuntimeError(f"no server within {seconds} s: {log.read_text()[-2000:]}")


def tanbr(
    folder: Path | None, work: Path, *, history: Path | None = None, **serve: Any
) -> AbstractContextManager[tuple[int, int]]:
    """`tanbr serve` on a checkpoint: its port and process id."""
    name = f"tanbr-{time.time_ns()}"
    values = {"slot_seconds": 3600, "batch": 32, "queue": 4096} | serve
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None]
    config = work / f"{name}.toml"
    config.write_text("\n".join(["[serve]", *lines, ""]))
    command = ["-m", "tanbr", "serve", *([str(folder)] if folder else [])]
    command += ["--force", "--config", str(config), "--state", str(work / name)]
    command += ["--history", str(history)] if history else []
    return started(command, work / f"{name}.log")


@contextmanager
def started(
    command: list[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    path: str = "/readyz",
    python: str = sys.executable,
) -> Iterator[tuple[int, int]]:
    """Run a server's command with a port of its own: its port and process id."""
    port = free_port()
    with process([*command, "--port", str(port)], log=log, environment=environment or {}, python=python) as running:
        wait_ready(port, running, log, path=path)
        yield port, running.pid


def rival(
    kind: str, folder: Path, work: Path, *, threads: int, python: str = sys.executable, precision: str = "float32"
) -> AbstractContextManager[tuple[int, int]]:
    """Serve an MoE's even merge by the plain handler or by LitServe."""
    command = ["-m", "serving.rivals", kind, str(folder), "--threads", str(threads), "--precision", precision]
    log, path = work / f"{kind}-{precision}.log", "/health" if kind == "litserve" else "/readyz"
    return started(command, log, path=path, python=python)


def infinity(
    folder: Path, work: Path, *, engine: str, precision: str, python: str
) -> AbstractContextManager[tuple[int, int]]:
    """Serve a dense model by Infinity: by torch, or by Optimum's ONNX Runtime with the file that is in the folder."""
    command = ["-m", "infinity_emb.cli", "v2", "--model-id", str(folder), "--served-model-name", "model"]
    command += ["--engine", engine]
    command += ["--device", "cpu", "--batch-size", "32", "--no-model-warmup", "--log-level", "error"]
    command += ["--dtype", precision] if engine == "torch" else []
    environment = {"DO_NOT_TRACK": "1", "OMP_NUM_THREADS": str(os.cpu_count()), "HF_HUB_CACHE": str(work / "hub")}
    return started(
        command, work / f"infinity-{engine}-{precision}.log", environment=environment, path="/health", python=python
    )


def vllm(folder: Path, work: Path, *, precision: str, python: str) -> AbstractContextManager[tuple[int, int]]:
    """Serve a dense model by vLLM's classify endpoint."""
    command = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--served-model-name", "model"]
    command += ["--runner", "pooling", "--dtype", precision, "--max-num-seqs", "64"]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": str(os.cpu_count()), "VLLM_NO_USAGE_STATS": "1"}
    return started(command, work / f"vllm-{precision}.log", environment=environment, path="/health", python=python)


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


def answer_of(running: subprocess.Popen[str], line: str) -> str:
    """Write a line to a process; the line that it answers with."""
    assert running.stdin is not None
    assert running.stdout is not None
    running.stdin.write(line + "\n")
    running.stdin.flush()
    answer = running.stdout.readline().strip()
    if not answer:
        raise RuntimeError("the process that was asked is gone")
    return answer


@contextmanager
def bare(folder: Path, work: Path, batches: list[list[str]], *, threads: int) -> Iterator[Callable[[str], float]]:
    """Run the model alone in a process; what asks it for a figure by its name (`serving/bare.py`)."""
    arguments = ["-m", "serving.bare", str(folder), str(threads)]
    with process(arguments, log=work / "bare.log", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        answer_of(running, json.dumps(batches))
        yield lambda name: float(json.loads(answer_of(running, name)))


def resident(pid: int) -> dict[str, float]:
    """Memory of a process and its children in MB: resident, and resident without pages of files."""
    total = {"rss": 0.0, "anonymous": 0.0}
    for one in _family(pid):
        lines = Path(f"/proc/{one.pid}/smaps_rollup").read_text().splitlines()[1:]
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        total["rss"] += int(fields["Rss"].split()[0]) / 1024
        total["anonymous"] += int(fields["Anonymous"].split()[0]) / 1024
    return total


def processor_seconds(pid: int) -> float:
    """Processor time that a process and its children have taken, in user and in system mode."""
    return float(sum(sum(one.cpu_times()[:2]) for one in _family(pid)))


def _family(pid: int) -> list[psutil.Process]:
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]
