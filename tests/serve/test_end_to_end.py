"""The whole: a real server process, real clients, a drift, `kill -9`, and what was learned is still there."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from cli.running import TANBR, environment
from processes import started
from tanbr.lab.drive import Drive, drive
from tanbr.lab.tasks import tiny
from tanbr.lab.tasks.traffic import Traffic
from tanbr.serve.web.client import Client
from tanbr.tasks.metrics import LabelSpace

TOKEN, ADMIN_TOKEN = "the-token-of-the-test", "the-other-token-of-the-test"
SLOT = 16  # requests
V = len(tiny.TASKS)


@dataclass
class Server:
    url: str
    process: subprocess.Popen[str]

    def ask(self, path: str, body: Any = None, token: str = TOKEN) -> Any:
        headers = {"authorization": f"Bearer {token}"}
        method = "GET" if body is None and not path.startswith("/v1/admin") else "POST"
        return httpx2.request(method, self.url + path, json=body, headers=headers, timeout=60).json()


@contextmanager
def serving(folder: Path, *arguments: str | Path) -> Iterator[Server]:
    """Run `tanbr serve` and wait until it is ready."""
    command = [*TANBR, "serve", *arguments, "--port", "0", "--state", folder / "state", "--slot-requests", str(SLOT)]
    settings = environment(TANBR_TOKEN=TOKEN, TANBR_ADMIN_TOKEN=ADMIN_TOKEN)
    with (
        (folder / "log").open("ab") as log,
        started(command, stdout=subprocess.PIPE, stderr=log, cwd=folder, env=settings) as process,
    ):
        assert process.stdout
        url = next((found[0] for line in process.stdout if (found := re.search(r"http://\S+", line))), None)
        assert url, (folder / "log").read_text()
        while process.poll() is None:
            with suppress(httpx2.TransportError):
                if httpx2.get(f"{url}/readyz").is_success:
                    break
            time.sleep(0.05)
        yield Server(url, process)


def stream(*, slots: int, seed: int) -> Traffic:
    """Requests that turn from one half of the tasks to the other."""
    mixes = np.zeros((slots, V))
    mixes[: slots // 2, : V // 2] = mixes[slots // 2 :, V // 2 :] = 2 / V
    pools = {task.name: tiny.generate(task.name, 40, seed=77, split="test") for task in tiny.TASKS}
    return Traffic(pools=pools, mixes=mixes, requests=SLOT, seed=seed)


def drive_in_step(server: Server, client: Client, *, slots: int, seed: int) -> list[Drive]:
    """Send slot after slot, each when the server has turned the one before."""
    driven = []
    slot = server.ask("/v1/state")["slot"]
    for one in drive(client, stream(slots=slots, seed=seed), space=LabelSpace(tiny.TASKS)):
        driven.append(one)
        slot += 1
        ends = time.monotonic() + 30
        while server.ask("/v1/state")["slot"] < slot:
            assert time.monotonic() < ends, server.ask("/v1/state")
            time.sleep(0.02)
    return driven


def told(slots: list[dict[str, Any]]) -> dict[int, tuple[Any, ...]]:
    """What must never change again: the blend, reward and counts of slots that the router has learned from."""
    return {slot["slot"]: (slot["blend"], slot["reward"], slot["counts"]) for slot in slots if slot["told"]}


def test_what_is_learned_through_a_drift_outlives_the_process(tmp_path: Path) -> None:
    with serving(tmp_path, "--models", "2") as server:
        with Client(server.url, token=TOKEN) as client:
            driven = drive_in_step(server, client, slots=10, seed=1)
            before = server.ask("/v1/slots?limit=1000")["slots"]
            state = server.ask("/v1/state")
            late = client.classify(["a fine film"])["outputs"][0]["request_id"]
            assert client.feedback([{"request_id": late, "reward": 1.0}]) == {
                "accepted": 1,
                "repeated": 0,
                "unknown": 0,
            }
        assert all(one.accepted == SLOT for one in driven)
        assert len(told(before)) >= 7
        assert len(state["models"]) == 2
        assert state["merge_version"] > 1  # it did try other blends
        served = {model["merge_version"]: set(model["tasks"]) for model in state["models"]}
        assert sum(len(tasks) for tasks in served.values()) == V  # every task has its model
        early, turned = driven[4].state["task_mix"], state["task_mix"]  # the mix was followed, without a tag
        assert sum(early[: V // 2]) > 0.6
        assert sum(turned[: V // 2]) < 0.4
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
    with serving(tmp_path, "--models", "2") as server:
        again = server.ask("/v1/state")
        assert (again["slot"], again["task_mix"]) == (state["slot"], state["task_mix"])
        assert {model["merge_version"]: set(model["tasks"]) for model in again["models"]} == served
        pinned = server.ask("/v1/admin/pin", {"merge_version": again["merge_version"]}, ADMIN_TOKEN)
        assert pinned["pinned"] is True
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
    with serving(tmp_path, "--models", "2") as server:
        after = server.ask("/v1/slots?limit=1000")["slots"]
        assert told(before).items() <= told(after).items()
        again = server.ask("/v1/state")
        assert again["slot"] > state["slot"]  # the pin opened one
        assert again["pinned"] is True
        with Client(server.url, token=TOKEN) as client:
            receipt = client.feedback([{"request_id": late, "reward": 0.0}])
            assert receipt == {"accepted": 0, "repeated": 1, "unknown": 0}  # acknowledged once is acknowledged for ever
            drive_in_step(server, client, slots=2, seed=2)
        server.ask("/v1/admin/unpin", None, ADMIN_TOKEN)
        assert server.ask("/v1/state")["slot"] > again["slot"]  # and it goes on
        server.process.terminate()
        assert server.process.wait(30) == 0  # saved, and not ended by the signal
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert events[-1]["event"] == "stopped"
    assert events[-1]["finished"] is True
    assert not [event for event in events if event["level"] == "error"]
