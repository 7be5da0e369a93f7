"""100,000 hostile requests against `tanbr serve` at its default limits, while a well-behaved client asks on.

The attacks (serving/attacks.py) are drawn from the server's own OpenAPI document; then schemathesis draws its own, and
a crowd of connections tries to lock everybody out. Passed: the well-behaved client is always answered, every refusal
is a 4xx (or an honest 503 or 504) with one sentence in JSON, there is no fault in the log, and memory stays bounded.
"""

import argparse
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import numpy as np

from serving.attacks import Attack, Attacker, request
from serving.processes import TOKEN as ADMIN_TOKEN
from serving.processes import resident, tanbr
from serving.rounds import report

WORKERS = 4
CROWD = 600  # connections of one client; the server takes 512 in all
ANSWER = re.compile(rb"HTTP/1\.1 (\d{3})[^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@dataclass
class Tally:
    """What became of the attacks."""

    statuses: Counter[str] = field(default_factory=Counter)  # "family status" → how many
    wrong: list[str] = field(default_factory=list)  # answers that should not have been
    sent: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, attack: Attack, answers: list[tuple[int, bytes]]) -> None:
        """Judge the answers to one attack."""
        with self.lock:
            self.sent += 1
            if not answers:
                self.statuses[f"{attack.family} none"] += 1
                if attack.stays:
                    self.wrong.append(f"{attack.family}: no answer to {attack.data[:300]!r}")
            for status, body in answers:
                self.statuses[f"{attack.family} {status}"] += 1
                if fault := judged(status, body):
                    self.wrong.append(f"{attack.family}: {fault}: {attack.data[:300]!r} → {body[:200]!r}")


def judged(status: int, body: bytes) -> str | None:
    """Say what is wrong with an answer, if anything is; an answer to HEAD has no body."""
    if status < 400 or not body:
        return None
    if status >= 500 and status not in (503, 504):
        return f"status {status}"
    try:
        sentence = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"{status} without a sentence"
    odd = not sentence or "\n" in sentence or "Traceback" in sentence or "/site-packages/" in sentence
    return f"{status} with an odd sentence" if odd or len(sentence) > 400 else None


def send(where: tuple[str, int], attack: Attack) -> list[tuple[int, bytes]]:
    """Send an attack and read all the answers to it; a client that closes its side may have to ask again with it open.

    Half-closed, it need not wait until what is no whole request is given up; but the server takes it for one that has
    left, and does not answer its whole requests.
    """
    return _sent(where, attack, half_closed=True) or (_sent(where, attack, half_closed=False) if attack.stays else [])


def _sent(where: tuple[str, int], attack: Attack, *, half_closed: bool) -> list[tuple[int, bytes]]:
    with socket.create_connection(where, timeout=40) as connection:
        with suppress(OSError):  # the server may well hang up on what it has seen of it
            connection.sendall(attack.data)
            if attack.stays and half_closed:
                connection.shutdown(socket.SHUT_WR)
        data = b""
        while attack.stays:
            try:
                chunk = connection.recv(1 << 16)
            except OSError:
                break
            if not chunk:
                break
            data += chunk
            if not half_closed and list(parsed(data)):
                break
    return list(parsed(data))


def parsed(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Cut what came back into answers."""
    while found := ANSWER.search(data):
        length, rest = LENGTH.search(found[2]), data[found.end() :]
        size = 0 if length is None or rest.startswith(b"HTTP/1.1 ") else int(length[1])  # HEAD has no body
        if found[1] != b"100":
            yield int(found[1]), rest[:size]
        data = rest[size:]


def attack(url: str, *, requests: int, seed: int, tick: Callable[[int], None] | None = None) -> Tally:
    """Send so many attacks from several threads."""
    parts, tally = urlsplit(url), Tally()
    where = (str(parts.hostname), int(parts.port or 80))
    document = httpx2.get(f"{url}/openapi.json", timeout=60).json()

    def work(number: int) -> None:
        attacker = Attacker(document, seed=1000 * seed + number)
        for _ in range(requests // WORKERS):
            drawn = attacker.draw()
            tally.note(drawn, send(where, drawn))
            if tick is not None:
                tick(tally.sent)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(work, range(WORKERS)))
    return tally


def crowd(url: str, *, connections: int = CROWD) -> dict[str, int]:
    """Hold more connections open than the server takes, from one address, and ask for its health from there.

    They stop amid a head, amid a body, and before they say anything.
    """
    parts, healthy, others = urlsplit(url), 0, 0
    where = (str(parts.hostname), int(parts.port or 80))
    for said in (request("/healthz", method="GET")[:-4], request("/v1/classify", b"{" * 1000)[:-999], b""):
        with ExitStack() as stack:
            other = stack.enter_context(Customer.client(url))
            for _ in range(connections):
                held = stack.enter_context(socket.create_connection(where, timeout=20))
                with suppress(OSError):
                    held.sendall(said)
            for _ in range(20):
                with suppress(httpx2.HTTPError):
                    healthy += httpx2.get(f"{url}/healthz", timeout=20).is_success
                with suppress(httpx2.HTTPError):
                    others += other.get("/v1/state").is_success
    return {"connections": connections, "health_asked": 60, "health_answered": healthy, "other_client_answered": others}


class Customer:
    """A well-behaved client at another address, which asks and gives feedback all along."""

    def __init__(self, url: str) -> None:
        self.times: list[float] = []
        self.faults: list[str] = []
        self._url, self._done, self._thread = url, threading.Event(), threading.Thread(target=self._run)

    @staticmethod
    def client(url: str) -> httpx2.Client:
        """Make a client of an address that attacks nobody."""
        return httpx2.Client(base_url=url, transport=httpx2.HTTPTransport(local_address="127.0.0.2"), timeout=60)

    def __enter__(self) -> "Customer":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        with self.client(self._url) as http:
            while not self._done.wait(0.05):
                started = time.perf_counter()
                try:
                    answer = http.post("/v1/classify", json={"inputs": ["the pacing is clever", ["one", "two"]]})
                    items = [{"request_id": one["request_id"], "reward": 1} for one in answer.json()["outputs"]]
                    assert http.post("/v1/feedback", json={"feedback": items}).json()["accepted"] == 2
                except (httpx2.HTTPError, KeyError, ValueError, AssertionError) as error:
                    self.faults.append(f"{type(error).__name__}: {error}"[:300])
                self.times.append(time.perf_counter() - started)

    def figures(self, since: int = 0) -> dict[str, Any]:
        """Say how it fared from its `since`-th round on."""
        ms = np.quantile(self.times[since:], (0.5, 0.99, 1.0)) * 1e3
        return {
            "asked": len(self.times) - since,
            "failed": len(self.faults),
            "failures": self.faults[:5],
            **dict(zip(("median_ms", "p99_ms", "most_ms"), ms.round(1).tolist(), strict=True)),
        }


SCHEMATHESIS = """
[auth.openapi.admin]
bearer = "{admin}"
[auth.openapi.token]
bearer = "{admin}"

[checks]
negative_data_rejection.expected-statuses = ["400", "401", "403", "404", "405", "413", "415", "422", "429"]
positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "429"]  # its address attacks, too

# What JSON Schema cannot say: weights that sum to 1, versions that are kept, labels of the task that is named.
[[operations]]
include-path = ["/v1/admin/pin", "/v1/admin/rollback", "/v1/feedback"]
checks.positive_data_acceptance.expected-statuses = ["2xx", "422", "429"]
"""


def schemathesis(
    url: str,
    folder: Path,
    *,
    examples: int,
    phases: str = "examples,coverage,fuzzing",
    seed: int = 0,
    only: str | None = None,
    admin_token: str = ADMIN_TOKEN,
) -> dict[str, Any]:
    """Have schemathesis make requests of the server's own document, and check every answer against it."""
    (folder / "schemathesis.toml").write_text(SCHEMATHESIS.format(admin=admin_token))
    document = httpx2.get(f"{url}/openapi.json", headers={"authorization": f"Bearer {admin_token}"})
    (folder / "openapi.json").write_bytes(document.content)
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "--config-file", "schemathesis.toml", "run",
        "openapi.json", "--url", url, "--checks", "all", "--phases", phases, "--max-examples", str(examples),
        "--seed", str(seed), "--no-color", *(["--include-path", only] if only else []),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    found = re.search(r"(\d+) generated", done.stdout)
    if not found:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    said = "" if done.returncode == 0 else done.stdout[-6000:]
    return {"passed": done.returncode == 0, "cases": int(found[1]), "report": said}


def main() -> None:
    """Run it, print what happened, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--examples", type=int, default=30, help="examples of schemathesis for an operation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="1500 requests, 1 example")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    requests, examples = (1500, 1) if arguments.quick else (arguments.requests, arguments.examples)
    memory: list[float] = []
    with ExitStack() as stack:  # every limit of the server at its default
        name = stack.enter_context(tempfile.TemporaryDirectory())
        port, process = stack.enter_context(tanbr(None, Path(name), threads=1, slot_requests=256))
        url = f"http://127.0.0.1:{port}"
        customer = stack.enter_context(Customer(url))
        time.sleep(5)
        calm, rounds = customer.figures(), len(customer.times)

        def tick(sent: int) -> None:
            if sent % max(1, requests // 100) == 0:
                memory.append(round(resident(process)["rss"], 1))

        tally = attack(url, requests=requests, seed=arguments.seed, tick=tick)
        attacked = customer.figures(rounds)
        crowded = crowd(url)
        checked = schemathesis(url, Path(name), examples=examples, seed=arguments.seed)
        alive = httpx2.get(f"{url}/healthz").is_success
        log = "".join(file.read_text(errors="replace") for file in Path(name).glob("*.log"))
    faults = [line for line in log.splitlines() if '"level": "error"' in line]
    result = {
        "hostile_requests": tally.sent,
        "wrong_answers": len(tally.wrong),
        "wrong_examples": tally.wrong[:20],
        "schemathesis": checked,
        "crowd": crowded,
        "faults_in_the_log": faults[:5],
        "customer_before": calm,
        "customer_meanwhile": attacked,
        "memory_mb": {"first": memory[0], "last": memory[-1], "most": max(memory)},
        "alive": alive,
        "statuses": dict(sorted(tally.statuses.items())),
    }
    report(result, arguments.out)
    healthy = crowded["health_answered"] == crowded["health_asked"]
    sys.exit(0 if alive and healthy and not (tally.wrong or faults or customer.faults) and checked["passed"] else 1)


if __name__ == "__main__":
    main()
