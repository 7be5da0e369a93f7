"""100,000 malformed and hostile requests against a live server, and what it made of them.

A well-behaved client asks all the while. Passed: it is always answered, every refusal is a 4xx (or an honest 503 or
504) with one sentence in JSON, nothing that was not understood is accepted, and memory stays where it was.
"""

import argparse
import json
import os
import platform
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from rich.console import Console
from rich.table import Table

TOKEN, ADMIN_TOKEN = "a-token-of-the-benchmark", "another-token-of-the-benchmark"
WORKERS = 4
SETTINGS = "[http]\nread_seconds = 2.0\nbody_bytes = 65536\ntext_chars = 2000\ninputs = 64\nconnections = 64\n"


@dataclass(frozen=True)
class Attack:
    """Bytes to send, and whether the client stays to hear the answer."""

    family: str
    data: bytes
    stays: bool = True


def framed(family: str, method: str, path: str, body: bytes = b"", **headers: str) -> Attack:
    """Make a request whose framing is right, whatever else is wrong with it."""
    known = {"host": "localhost", "authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    known |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in known.items())
    length = f"content-length: {len(body)}\r\n" if body or method == "POST" else ""
    head = f"{method} {path} HTTP/1.1\r\n{lines}{length}\r\n"
    return Attack(family, head.encode("utf-8", "surrogateescape") + body)


STRANGE = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"9" * 5000, b"0x10", b"01", b"null", b"true", b'""',
    b"[]", b"{}", b'"\\ud800"', b'"\\udfff\\ud800"', b'"\\u0000"', b'"\xff\xfe"', b'"\xed\xa0\x80"',
    b'"\xf4\x90\x80\x80"', b"'single'", b'"' + b"a" * 3000 + b'"', b"[" * 3000, b"[" * 500 + b"]" * 500,
    b'{"a":' * 400 + b"1" + b"}" * 400, b'["a", "b", "c"]', b'[["a", "b"]]', b'[null, "b"]', b"-0", b"1.5",
    b"[" + b",".join([b'"x"'] * 3000) + b"]", b'{"__proto__": {"x": 1}}', b'"${jndi:ldap://x}"',
    b"\"'; DROP TABLE feedback; --\"", b'"../../etc/passwd"', b"\xef\xbb\xbf{}", b"/* comment */ 1", b"1 2", b"",
    b"\x00", b"\x1b[31m",
)  # fmt: skip
KEYS = (b"inputs", b"labels", b"feedback", b"request_id", b"reward", b"task", b"label", b"merge_version", b"blend")
PATHS = ("/v1/classify", "/v1/feedback", "/v1/state", "/v1/slots", "/metrics", "/v1/completions", "/", "/healthz")
ADMIN = ("/v1/admin/pin", "/v1/admin/unpin", "/v1/admin/rollback", "/v1/admin/slot")
GOOD = (
    ("/v1/classify", b'{"inputs": ["a fine film", ["one text", "another"]], "labels": ["positive", "negative"]}'),
    ("/v1/feedback", b'{"feedback": [{"request_id": "aaaaaaeok6psc7s7", "reward": 0.5, "task": "sentiment"}]}'),
    ("/v1/feedback", b'{"feedback": [{"request_id": "x", "label": "positive", "task": "sentiment"}]}'),
)


def bodies(rng: random.Random) -> Attack:
    """A right body with something strange in the place of a value, or cut, doubled, shuffled, re-encoded."""
    path, good = rng.choice(GOOD)
    how = rng.randrange(7)
    if how == 0:
        body = re.sub(rb'"[^"]*"(?=[],}])|0\.5', lambda _: rng.choice(STRANGE), good, count=rng.randint(1, 3))
    elif how == 1:
        body = good[: rng.randrange(len(good))]
    elif how == 2:
        cut = rng.randrange(1, len(good))
        body = good[:cut] + rng.randbytes(rng.randint(1, 8)) + good[cut:]
    elif how == 3:
        body = (
            b"{"
            + b", ".join(b'"%s": %s' % (rng.choice(KEYS), rng.choice(STRANGE)) for _ in range(rng.randint(1, 5)))
            + b"}"
        )
    elif how == 4:
        body = good.decode().encode(rng.choice(["utf-16", "utf-32", "utf-8-sig", "utf-16-be"]))
    elif how == 5:
        body = rng.choice(STRANGE)
    else:
        body = good[:-1] + b", " + good[1:]
    return framed("bodies", "POST", path, body)


def meanings(rng: random.Random) -> Attack:
    """Right JSON of the right shape that means nothing here."""
    say: Callable[[Any], bytes] = lambda value: json.dumps(value).encode()  # noqa: E731
    name = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz234567", k=rng.choice([0, 8, 32, 33, 2000])))
    how = rng.randrange(6)
    if how == 0:
        body = say({"inputs": ["x" * rng.choice([2001, 30_000])]})
    elif how == 1:
        body = say({"inputs": ["x"] * rng.choice([65, 5000])})
    elif how == 2:
        body = say({"inputs": ["x"], "labels": [name, "positive"]})
    elif how == 3:
        return framed(
            "meanings", "POST", "/v1/feedback", say({"feedback": [{"request_id": name, "reward": rng.random()}]})
        )
    elif how == 4:
        items = [{"request_id": name, "reward": rng.choice([-1e-9, 1.0000001, 2, -5, 1e308])}]
        return framed("meanings", "POST", "/v1/feedback", say({"feedback": items}))
    else:
        items = [
            {
                "request_id": name,
                "label": rng.choice(["positive", "entailment", 3.5, 99, ""]),
                "task": rng.choice(["sentiment", "similarity", "x"]),
            }
        ]
        return framed("meanings", "POST", "/v1/feedback", say({"feedback": items}))
    return framed("meanings", "POST", "/v1/classify", body)


def paths(rng: random.Random) -> Attack:
    """Strange paths, queries and methods."""
    method = rng.choice(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "PROPFIND"])
    path = rng.choice([*PATHS, *ADMIN])
    tricks = (
        "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//v1/state", "/v1//state", path + "/", path + "%00",
        path + ";x=1", "/dashboard/..%2fapp.py", "/dashboard/%2e%2e/app.py", path + "?" + "a=1&" * 500, "/%ff%fe",
        "/" + "a" * 4000, "/v1/slots?limit=" + rng.choice(["-1", "0", "1e9", "9" * 40, "x"]), "/v1/tree?limit=1001",
        "/v1/slots?before=" + rng.choice(["-1", "9" * 30, "null", "%00"]), "http://evil.example/v1/state", "*",
        "/v1/models/" + "x" * 100,
    )  # fmt: skip
    return framed("paths", method, rng.choice([path, *tricks]))


def heads(rng: random.Random) -> Attack:
    """Strange headers on a right request."""
    path, body = rng.choice(GOOD)
    changes: dict[str, str] = dict(
        [
            rng.choice(
                [
                    (
                        "content_type",
                        rng.choice(
                            [
                                "",
                                "text/plain",
                                "application/xml",
                                "application/json; charset=utf-16",
                                "multipart/form-data",
                                "a" * 900,
                            ]
                        ),
                    ),
                    (
                        "authorization",
                        rng.choice(
                            [
                                "",
                                "Bearer",
                                "Bearer ",
                                f"bearer {TOKEN}x",
                                "Basic Og==",
                                "Bearer " + "x" * 5000,
                                "Bearer \udcff\udcfe",
                            ]
                        ),
                    ),
                    (
                        "host",
                        rng.choice(
                            ["evil.example", "", "localhost:99999", "127.0.0.1.evil.example", "[::1", "x" * 300]
                        ),
                    ),
                    ("x_forwarded_for", "1.2.3.4, 5.6.7.8"),
                    ("content_encoding", "gzip"),
                    ("expect", rng.choice(["100-continue", "200-ok"])),
                    ("connection", rng.choice(["close", "upgrade, keep-alive", "x" * 100])),
                    ("range", "bytes=0-0,1-1,2-2"),
                    ("accept", "application/xml"),
                    ("cookie", "a=" + "b" * 5000),
                ]
            )
            for _ in range(rng.randint(1, 3))
        ]
    )
    return framed("heads", "POST", path, body, **changes)


def admin(rng: random.Random) -> Attack:
    """Administration without its token."""
    token = rng.choice(["", TOKEN, ADMIN_TOKEN[:-1], ADMIN_TOKEN + "x", ADMIN_TOKEN.upper(), "null"])
    return framed(
        "admin",
        "POST",
        rng.choice(ADMIN),
        rng.choice([b"", b'{"merge_version": 1}', b"{"]),
        authorization=f"Bearer {token}",
    )


def raw(rng: random.Random) -> Attack:
    """What is hardly HTTP, or lies about its length."""
    good = framed("", "POST", *GOOD[0]).data
    how = rng.randrange(9)
    if how == 0:
        data = rng.randbytes(rng.randint(1, 400)) + b"\r\n\r\n"
    elif how == 1:
        spoilt = bytearray(good)
        for _ in range(rng.randint(1, 6)):
            spoilt[rng.randrange(len(good.partition(b"\r\n\r\n")[0]))] = rng.randrange(256)
        data = bytes(spoilt)
    elif how == 2:
        data = good.replace(b"content-length", b"transfer-encoding: chunked\r\ncontent-length")
    elif how == 3:
        data = re.sub(rb"content-length: \d+", b"transfer-encoding: chunked", good)
    elif how == 4:
        lie = rng.choice([b"-1", b"1e3", b"0x20", b"9" * 30, b"1, 1", b" ", b"1\r\ncontent-length: 2"])
        data = re.sub(rb"content-length: \d+", b"content-length: " + lie, good)
    elif how == 5:
        data = (
            b"GET / HTTP/" + rng.choice([b"9.9", b"1.1x", b"", b"2.0", b"0.9", b"1"]) + b"\r\nhost: localhost\r\n\r\n"
        )
    elif how == 6:
        data = (
            b"GET / HTTP/1.1\r\n"
            + b"".join(b"x-%d: %s\r\n" % (n, b"y" * 1000) for n in range(rng.choice([10, 80, 300])))
            + b"\r\n"
        )
    elif how == 7:
        data = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(200)
    else:
        data = good * rng.randint(2, 5) + rng.randbytes(20)
    return Attack("raw", data)


def leaving(rng: random.Random) -> Attack:
    """A client that hangs up: amid its head, amid its body, or before its answer."""
    good = framed("", "POST", *rng.choice(GOOD)).data
    return Attack("leaving", good[: rng.choice([rng.randrange(1, len(good)), len(good)])], stays=False)


FAMILIES: tuple[tuple[Callable[[random.Random], Attack], int], ...] = (
    (bodies, 30), (meanings, 15), (paths, 15), (heads, 15), (admin, 5), (raw, 15), (leaving, 5),
)  # fmt: skip


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
                fault = judged(status, body, method=attack.data[:5])
                if fault:
                    self.wrong.append(f"{attack.family}: {fault}: {attack.data[:300]!r} → {body[:200]!r}")


def judged(status: int, body: bytes, *, method: bytes) -> str | None:
    """Say what is wrong with an answer, if anything is."""
    if status < 400:
        return None
    if status >= 500 and status not in (503, 504):
        return f"status {status}"
    if method == b"HEAD ":
        return None
    try:
        error = json.loads(body)["error"]
        sentence = error["message"]
    except (ValueError, KeyError, TypeError):
        return f"{status} without a sentence"
    if not sentence or "\n" in sentence or "Traceback" in sentence or len(sentence) > 400:
        return f"{status} with an odd sentence"
    return None


class Connection:
    """A socket that is opened again when the server has closed it."""

    def __init__(self, host: str, port: int) -> None:
        self._where, self._socket = (host, port), socket.socket()
        self._socket.close()

    def send(self, attack: Attack, *, fresh: bool) -> list[tuple[int, bytes]]:
        """Send an attack, and read all the answers there are to it."""
        if fresh or self._socket.fileno() < 0:
            self._socket.close()
            self._socket = socket.create_connection(self._where, timeout=10)
        with suppress(OSError):  # the server may well have hung up on what it had seen of it
            self._socket.sendall(attack.data)
        if not attack.stays:
            self._socket.close()
            return []
        if fresh:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
        return self._read(one=not fresh, bodiless=attack.data.startswith(b"HEAD "))

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _read(self, *, one: bool, bodiless: bool) -> list[tuple[int, bytes]]:
        answers, data, open_ = [], b"", True
        while True:
            head, end, rest = data.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            size = 0 if bodiless or not length else int(length[1])
            if end and len(rest) >= size:
                status = int(head.split(b" ", 2)[1])
                data = rest[size:]
                if status != 100:
                    answers.append((status, rest[:size]))
                if b"connection: close" in head:
                    self._socket.close()
                    return answers
                if one and status != 100:
                    return answers
                continue
            if not open_:
                self._socket.close()
                return answers
            try:
                chunk = self._socket.recv(65536)
            except OSError:
                chunk = b""
            open_, data = bool(chunk), data + chunk


def attack(
    url: str, *, requests: int, seed: int, workers: int = WORKERS, tick: Callable[[int], None] = lambda _: None
) -> Tally:
    """Send so many attacks, drawn from every family, over a few connections at once."""
    tally = Tally()
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    makers, weights = [make for make, _ in FAMILIES], [weight for _, weight in FAMILIES]

    def work(worker: int) -> None:
        rng = random.Random(f"{seed}/{worker}")
        connection = Connection(parts.hostname or "", parts.port or 0)
        for n in range(worker, requests, workers):
            one = rng.choices(makers, weights)[0](rng)
            try:
                answers = connection.send(one, fresh=one.family in ("raw", "leaving") or n % 50 == worker)
                if not answers and one.stays:  # kept alive, and closed by the server's clock just then: once more
                    answers = connection.send(one, fresh=True)
            except OSError as error:
                answers = []
                with tally.lock:
                    tally.wrong.append(f"{one.family}: {error!r}")
            tally.note(one, answers)
            tick(tally.sent)
        connection.close()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally


class Customer:
    """A well-behaved client that asks all the while, with httpx; every answer must come, and come right."""

    def __init__(self, url: str) -> None:
        self.answers, self.faults, self.times = 0, list[str](), list[float]()
        self._stop = threading.Event()
        self._http = httpx2.Client(base_url=url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=30)
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> "Customer":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._http.close()

    def _ask(self) -> None:
        while not self._stop.wait(0.05):
            started = time.perf_counter()
            try:
                answer = self._http.post("/v1/classify", json={"inputs": ["a fine film", ["one", "two"]]})
                outputs = answer.json()["outputs"]
                assert len(outputs) == 2
                receipt = self._http.post(
                    "/v1/feedback",
                    json={"feedback": [{"request_id": one["request_id"], "reward": 1} for one in outputs]},
                )
                assert receipt.json()["accepted"] == 2
            except Exception as error:
                self.faults.append(repr(error)[:300])
            self.answers += 1
            self.times.append(time.perf_counter() - started)


def resident(process: int) -> int:
    """Bytes of memory that a process holds (Linux)."""
    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def open_files(process: int) -> int:
    """Files and sockets that a process has open (Linux)."""
    return len(list(Path(f"/proc/{process}/fd").iterdir()))


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, int]]:
    """Run `tanbr serve` on the embedded model; its address and its process."""
    (folder / "tanbr.toml").write_text(SETTINGS)
    command = [str(Path(sys.executable).with_name("tanbr")), "serve", "--port", "0", "--state", str(folder / "state")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--slot-requests", "256", "--config", str(folder / "tanbr.toml")],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | {"TANBR_TOKEN": TOKEN, "TANBR_ADMIN_TOKEN": ADMIN_TOKEN},
        )
        try:
            assert process.stdout
            url = next(found[0] for line in process.stdout if (found := re.search(r"http://\S+", line)))
            while True:
                with suppress(httpx2.TransportError):
                    if httpx2.get(f"{url}/readyz").is_success:
                        break
                time.sleep(0.1)
            yield url, process.pid
        finally:
            process.terminate()
            process.wait(60)


SCHEMATHESIS = """
[auth.openapi.admin]
bearer = "{admin}"
[auth.openapi.token]
bearer = "{token}"

[checks]
negative_data_rejection.expected-statuses = ["400", "401", "403", "404", "405", "413", "415", "422", "429"]

# What JSON Schema cannot say: weights that sum to 1, versions that are kept, labels of the task that is named.
[[operations]]
include-path = ["/v1/admin/pin", "/v1/admin/rollback", "/v1/feedback"]
checks.positive_data_acceptance.expected-statuses = ["2xx", "422"]
"""


def schemathesis(
    url: str,
    folder: Path,
    *,
    examples: int,
    phases: str = "examples,coverage,fuzzing",
    seed: int = 0,
    only: str | None = None,
) -> dict[str, Any]:
    """Have schemathesis make requests of the server's own document, and check every answer against it."""
    (folder / "schemathesis.toml").write_text(SCHEMATHESIS.format(admin=ADMIN_TOKEN, token=ADMIN_TOKEN))
    document = httpx2.get(f"{url}/openapi.json", headers={"authorization": f"Bearer {ADMIN_TOKEN}"})
    (folder / "openapi.json").write_bytes(document.content)
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "--config-file", "schemathesis.toml", "run",
        "openapi.json", "--url", url, "--checks", "all", "--phases", phases, "--max-examples", str(examples),
        "--seed", str(seed),
        "--no-color", *(["--include-path", only] if only else []),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    found = re.search(r"(\d+) generated", done.stdout)
    if not found:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    return {
        "passed": done.returncode == 0,
        "cases": int(found[1]),
        "report": "" if done.returncode == 0 else done.stdout[-6000:],
    }


def main() -> None:
    """Run it, print what happened, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--examples", type=int, default=100, help="examples of schemathesis for an operation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="1500 requests, 1 example")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    requests, examples = (1500, 1) if arguments.quick else (arguments.requests, arguments.examples)
    console = Console()
    started = time.time()
    with tempfile.TemporaryDirectory() as name, server(Path(name)) as (url, process), Customer(url) as customer:
        warm = attack(url, requests=max(500, requests // 50), seed=arguments.seed + 1)
        memory = [resident(process)]
        files = [open_files(process)]

        def tick(sent: int) -> None:
            if sent % max(1, requests // 100) == 0:
                memory.append(resident(process))
                files.append(open_files(process))
                print(f"{sent} of {requests} sent, {memory[-1] / 1e6:.0f} MB", file=sys.stderr)

        tally = attack(url, requests=requests, seed=arguments.seed, tick=tick)
        checked = schemathesis(url, Path(name), examples=examples, seed=arguments.seed)
        memory.append(resident(process))
        alive = httpx2.get(f"{url}/healthz").is_success
        log = (Path(name) / "log").read_text(errors="replace")
    faults = [line for line in log.splitlines() if '"level": "error"' in line]
    wrong = warm.wrong + tally.wrong
    times = sorted(customer.times)
    quarter = len(memory) // 4
    result = {
        "command": f"python benchmarks/hostile.py{' --quick' if arguments.quick else ''}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("tanbr", "fastapi", "uvicorn", "httptools", "schemathesis")},
        "seed": arguments.seed,
        "seconds": round(time.time() - started, 1),
        "hostile_requests": warm.sent + tally.sent,
        "schemathesis": checked,
        "wrong_answers": len(wrong),
        "wrong_examples": wrong[:20],
        "faults_in_the_log": len(faults),
        "fault_examples": faults[:5],
        "statuses": dict(sorted((warm.statuses + tally.statuses).items())),
        "customer": {
            "asked": customer.answers,
            "failed": len(customer.faults),
            "failures": customer.faults[:5],
            "median_ms": round(1e3 * times[len(times) // 2], 1),
            "p99_ms": round(1e3 * times[int(0.99 * len(times))], 1),
        },
        "memory_mb": {
            "after_warm_up": round(memory[0] / 1e6, 1),
            "second_quarter_mean": round(sum(memory[quarter : 2 * quarter]) / quarter / 1e6, 1),
            "last_quarter_mean": round(sum(memory[-quarter:]) / quarter / 1e6, 1),
            "most": round(max(memory) / 1e6, 1),
        },
        "open_files": {"first": files[0], "most": max(files), "last": files[-1]},
        "alive": alive,
    }
    table = Table(
        "hostile requests", "schemathesis", "wrong answers", "customer: asked, failed", "memory MB: warm, last", "alive"
    )
    shown = f"{checked['cases']} cases, {'passed' if checked['passed'] else 'FAILED'}"
    megabytes = result["memory_mb"]
    assert isinstance(megabytes, dict)
    table.add_row(
        str(result["hostile_requests"]), shown, str(len(wrong)), f"{customer.answers}, {len(customer.faults)}",
        f"{megabytes['after_warm_up']}, {megabytes['last_quarter_mean']}", str(alive),
    )  # fmt: skip
    console.print(table)
    for line in wrong[:5]:
        console.print(line, markup=False)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(0 if alive and not wrong and not faults and not customer.faults and checked["passed"] else 1)


if __name__ == "__main__":
    main()
