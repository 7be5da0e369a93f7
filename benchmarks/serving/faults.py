"""Faults: the process killed at random instants."""

import asyncio
import contextlib
import json
import os
import random
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
from tanbr.serve.store import Store

TEXTS = [row.text for task in tiny.TASKS for row in tiny.generate(task.name, 4, seed=21, split="test")]
TASK = "sentiment"


@dataclass
class Client:
    """Asks, gives feedback, and remembers what was acknowledged."""

    port: int
    acknowledged: set[str] = field(default_factory=set)
    answered: int = 0
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
                given = [{"request_id": key, "reward": 1.0, "task": TASK} for key in ids]
                status, _ = await connection.send(request("POST", "/v1/feedback", {"feedback": given}))
                if status == 200:
                    self.acknowledged |= set(ids)
        connection.close()

    def run(self, seconds: float, *, clients: int = 3) -> None:
        """Work for some time."""
        ends = time.monotonic() + seconds

        async def all_of_them() -> None:
            await asyncio.gather(*(self.work(lambda: time.monotonic() > ends) for _ in range(clients)))

        asyncio.run(all_of_them())


class Nursery:
    """Starts servers quickly, for they do not live long."""

    def __init__(self, running: subprocess.Popen[str], log: Path) -> None:
        self._running, self._log = running, log

    def start(self, state: Path, port: int, *, slot: int = 24) -> int:
        """Start a server and wait until it answers; its process id."""
        asked = {"state": str(state), "port": port, "slot_requests": slot}
        child = int(processes.answer_of(self._running, json.dumps(asked)))
        processes.wait_ready(port, self._running, self._log, 120)
        return child

    def kill(self, child: int, how: signal.Signals = signal.SIGKILL) -> None:
        """End a server, unless it was ended before, and wait until it is gone."""
        os.kill(child, how)  # one that has ended stays a zombie until the nursery waits for it
        processes.answer_of(self._running, "")


@contextmanager
def nursery(work: Path) -> Iterator[Nursery]:
    """A process that starts servers."""
    arguments = ["-m", "serving.crash", str(work / "taught.state")]
    log = work / "nursery.log"
    with processes.process(arguments, log=log, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        yield Nursery(running, log)


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
            servers.kill(child)
        return {"kills": count} | _settled(servers, state, port, client)


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
