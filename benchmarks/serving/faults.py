"""Faults: the process killed at random instants, a full disk, a corrupt file of experts, a router that raises."""

import asyncio
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serving import processes
from serving.client import Connection, ask, request
from serving.crash import Counted
from tanbr.lab.tasks import tiny
from tanbr.moe import embedded
from tanbr.serve.store import Store

TEXTS = [row.text for task in tiny.TASKS for row in tiny.generate(task.name, 4, seed=21, split="test")]
TASK = "sentiment"


@dataclass
class Client:
    """Asks, gives feedback, and remembers what was acknowledged."""

    port: int
    acknowledged: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)  # sent, and never answered
    answered: int = 0
    refused: list[int] = field(default_factory=list)  # status of refused feedback
    broken: list[int] = field(default_factory=list)  # status of failed questions

    async def work(self, until: Callable[[], bool]) -> None:
        """Ask and give feedback until it is enough or the server is gone."""
        connection = Connection(self.port)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while not until():
                status, data = await connection.send(request("POST", "/v1/classify", {"inputs": TEXTS[:4]}))
                if status != 200:
                    self.broken.append(status)
                    continue
                self.answered += 1
                ids = [output["request_id"] for output in json.loads(data)["outputs"]]
                self.unsure |= set(ids)
                given = [{"request_id": key, "reward": 1.0, "task": TASK} for key in ids]
                status, _ = await connection.send(request("POST", "/v1/feedback", {"feedback": given}))
                self.unsure -= set(ids)
                if status == 200:
                    self.acknowledged |= set(ids)
                else:
                    self.refused.append(status)
        connection.close()

    def run(self, seconds: float, *, clients: int = 3) -> None:
        """Work for some time."""
        ends = time.monotonic() + seconds

        async def all_of_them() -> None:
            await asyncio.gather(*(self.work(lambda: time.monotonic() > ends) for _ in range(clients)))

        asyncio.run(all_of_them())


class Nursery:
    """Starts servers quickly, for they do not live long."""

    def __init__(self, running: subprocess.Popen[str]) -> None:
        self._running = running
        self._line()

    def start(self, state: Path, port: int, *, checkpoint: Path | None = None, mood: str = "", slot: int = 24) -> int:
        """Start a server and wait until it answers; its process id."""
        asked = {
            "state": str(state),
            "port": port,
            "checkpoint": str(checkpoint or ""),
            "slot_requests": slot,
            "mood": mood,
        }
        child = int(self._line(json.dumps(asked)))
        ends = time.monotonic() + 120
        while time.monotonic() < ends:
            try:
                if ask(port, "GET", "/readyz")[0] == 200:
                    return child
            except OSError:
                time.sleep(0.02)
        raise RuntimeError("a server did not start")

    def kill(self, child: int, how: signal.Signals = signal.SIGKILL) -> None:
        """End a server and wait until it is gone."""
        os.kill(child, how)
        self._line("")

    def _line(self, asked: str | None = None) -> str:
        assert self._running.stdin is not None
        assert self._running.stdout is not None
        if asked is not None:
            self._running.stdin.write(asked + "\n")
            self._running.stdin.flush()
        answer = self._running.stdout.readline().strip()
        if not answer:
            raise RuntimeError("the nursery is gone")
        return answer


@contextmanager
def nursery(work: Path) -> Iterator[Nursery]:
    """A process that starts servers."""
    arguments = ["-m", "serving.crash", str(work / "taught.state")]
    with processes.process(
        arguments, log=work / "nursery.log", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        yield Nursery(running)


def kills(work: Path, *, count: int) -> dict[str, Any]:
    """Kill a server under load at random instants; every acknowledged reward must be told to the router once."""
    rng, state, port = random.Random(0), work / f"kills-{time.time_ns()}", processes.free_port()
    client = Client(port)
    with nursery(work) as servers:
        for _ in range(count):
            child = servers.start(state, port)
            instant = rng.uniform(0.0, 0.5)
            timer = subprocess.Popen(["sh", "-c", f"sleep {instant}; kill -9 {child}"])
            client.run(instant + 0.5)
            timer.wait()
            servers.kill(child) if _alive(child) else servers._line("")
        return {"kills": count} | _settled(servers, state, port, client)


def _alive(child: int) -> bool:
    try:
        return Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _settled(servers: Nursery, state: Path, port: int, client: Client) -> dict[str, Any]:
    """Start once more, let every slot be told, and count."""
    child = servers.start(state, port, slot=10**6)
    late = Client(port)
    late.run(0.3)
    outcomes = {"accepted": 0, "repeated": 0, "unknown": 0}
    acknowledged = sorted(client.acknowledged)
    for start in range(0, len(acknowledged), 500):
        given = [{"request_id": key, "reward": 0.0, "task": TASK} for key in acknowledged[start : start + 500]]
        status, said = ask(port, "POST", "/v1/feedback", {"feedback": given})
        assert status == 200, said
        outcomes = {name: outcomes[name] + said[name] for name in outcomes}
    for _ in range(3):
        assert ask(port, "POST", "/v1/admin/slot", {}, token=processes.TOKEN)[0] == 200
    servers.kill(child, signal.SIGTERM)
    store = Store(state)
    stored, router = len(store.feedback(after=0)), Counted.load(state / store.meta("router"))
    slots = store.slots(limit=1)[0]["slot"]
    store.close()
    return {
        "answered": client.answered,
        "acknowledged": len(acknowledged),
        "acknowledged_and_lost": outcomes["accepted"] + outcomes["unknown"],
        "in_flight_and_kept": stored - len(acknowledged) - len(late.acknowledged),
        "stored": stored,
        "told_to_the_router": float(router._settings["total"]),
        "told_once": abs(float(router._settings["total"]) - stored) < 1e-6,
        "failed_questions": len(client.broken),
        "slots": slots,
    }


def _said(alarms: list[dict[str, Any]], path: Path, name: str) -> str:
    return str(alarms[0]["text"]).replace(str(path), name) if alarms else ""


def full_disk(work: Path) -> dict[str, Any]:
    """No file may grow any more for a while: questions are answered, feedback is refused, then all goes on."""
    state, port = work / f"full-{time.time_ns()}", processes.free_port()
    client = Client(port)
    with nursery(work) as servers:
        child = servers.start(state, port)
        client.run(1.5)
        before = client.answered
        resource.prlimit(child, resource.RLIMIT_FSIZE, (1 << 12, resource.RLIM_INFINITY))
        client.run(3.0)
        during, refused = client.answered - before, list(client.refused)
        alarms = ask(port, "GET", "/v1/state")[1]["alarms"]
        resource.prlimit(child, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        client.run(1.5)
        again = len(client.refused) == len(refused)
        servers.kill(child, signal.SIGTERM)
        return {
            "answered_during": during,
            "feedback_refused_during": len(refused),
            "status": sorted(set(refused)),
            "said": _said(alarms, state, "STATE"),
            "recovered": again,
        } | _settled(servers, state, port, client)


def corrupt_experts(work: Path) -> dict[str, Any]:
    """The file of experts is overwritten, then cut short, under a running server."""
    folder = Path(shutil.copytree(embedded.path(), work / f"corrupt-{time.time_ns()}"))
    file = folder / "model.safetensors"
    state, port = work / f"state-{time.time_ns()}", processes.free_port()
    client, found = Client(port), {}
    with nursery(work) as servers:
        child = servers.start(state, port, checkpoint=folder)
        client.run(1.0)
        for name, damage in (("overwritten", _overwrite), ("cut short", _cut)):
            before, version = client.answered, ask(port, "GET", "/v1/state")[1]["merge_version"]
            damage(file)
            client.run(1.5)
            now = ask(port, "GET", "/v1/state")[1]
            found[name] = {
                "answered": client.answered - before,
                "failed": len(client.broken),
                "old_version_stays": now["merge_version"] >= version,
                "said": _said(now["alarms"], folder, "CHECKPOINT"),
            }
        servers.kill(child, signal.SIGTERM)
    return found


def _overwrite(file: Path) -> None:
    with file.open("r+b") as damaged:
        damaged.seek(100_000)
        damaged.write(os.urandom(1 << 20))


def _cut(file: Path) -> None:
    os.truncate(file, 4096)


def raising_router(work: Path) -> dict[str, Any]:
    """The router raises whenever it is asked, for a while."""
    state, port, mood = work / f"moody-{time.time_ns()}", processes.free_port(), work / "mood"
    mood.unlink(missing_ok=True)
    client = Client(port)
    with nursery(work) as servers:
        child = servers.start(state, port, mood=str(mood))
        client.run(1.0)
        before = client.answered
        mood.touch()
        client.run(2.0)
        now = ask(port, "GET", "/v1/state")[1]
        during = client.answered - before
        mood.unlink()
        client.run(2.0)
        later = ask(port, "GET", "/v1/state")[1]
        servers.kill(child, signal.SIGTERM)
        return {
            "answered_during": during,
            "said": _said(now["alarms"], state, "STATE"),
            "learning_goes_on": later["merge_version"] > now["merge_version"],
        } | _settled(servers, state, port, client)
