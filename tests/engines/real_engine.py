"""Real engines, of `make engines`: vLLM by the Python in TANBR_VLLM_PYTHON, llama-server by TANBR_LLAMA_SERVER."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2

PYTHON, LLAMA_SERVER = os.environ.get("TANBR_VLLM_PYTHON"), os.environ.get("TANBR_LLAMA_SERVER")
SETTINGS = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_SERVER_DEV_MODE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
FLOAT32, SLOTS = ("-ctk", "f32", "-ctv", "f32", "-fa", "off"), 4  # of llama-server, which computes so many at once
OPTIONS = ("--dtype", "float32", "--enforce-eager", "--enable-prefix-caching")


class RealVllm:
    """A process that can be killed and started again."""

    def __init__(self, folder: Path, log: Path, *options: str, **settings: str) -> None:
        self.folder, self.log, self._options, self._settings = folder, log, options, settings
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """What starts it, but for its address."""
        started = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.folder), *OPTIONS]
        return [*started, *self._options]

    def start(self) -> None:
        """Start it and wait until it answers."""
        changes = SETTINGS | {"TMPDIR": str(self.log.parent)} | self._settings  # for what a kill leaves
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command(), "--host", "127.0.0.1", "--port", str(self.port)],
                stdout=log, stderr=log, cwd=self.log.parent, env=kept | changes, start_new_session=True,
            )  # fmt: skip
        while self.process.poll() is None:
            with suppress(httpx2.TransportError):
                if httpx2.get(f"{self.url}/health").is_success:
                    return
            time.sleep(0.2)
        raise AssertionError(self.log.read_text()[-3000:])

    def kill(self) -> None:
        """End it, and its workers, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def prefix_hits(self) -> float:
        """Count the tokens that were found in its prefix cache."""
        found = re.search(
            r"^vllm:prefix_cache_hits_total\{.*\} ([\d.e+]+)$", httpx2.get(f"{self.url}/metrics").text, re.M
        )
        assert found
        return float(found[1])

    @contextmanager
    def running(self) -> Iterator["RealVllm"]:
        try:
            self.start()
            yield self
        finally:
            self.kill()


class RealLlamaCpp(RealVllm):
    """llama-server over a base and adapters in GGUF, in float32 with its cache, and one thread."""

    def __init__(self, base: Path, adapters: Sequence[Path], log: Path) -> None:
        super().__init__(base, log)
        self.adapters = list(adapters)

    def command(self) -> list[str]:
        files = [word for adapter in self.adapters for word in ("--lora", str(adapter))]
        return [str(LLAMA_SERVER), "-m", str(self.folder), *files, *FLOAT32, "-t", "1", "-np", str(SLOTS), "-c", "2048"]
