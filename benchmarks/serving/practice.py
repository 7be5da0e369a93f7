"""What practice does to the latency of single requests: two servers of one model in turn, one of which practises."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from serving import processes
from serving.client import Load, after, ask, classify, drive
from tanbr.lab.corpus import of_data
from tanbr.tasks.rows import Row

SHARES = {"practice": 0.1, "no practice": 0.0}
RATE = 20.0  # requests a second
TAUGHT = 12  # slots of 64 labelled requests before the first round: there is something to practise on


def practice(folder: Path | None, data: Path | None, work: Path, *, rounds: int, count: int) -> dict[str, Any]:
    """Send so many requests a round at a steady rate; a latency counts from the moment a request was due."""
    corpus, rng = of_data(data), np.random.default_rng(0)
    rows = [row for of_task in corpus.stream.values() for row in of_task]
    labels = {task.name: task.labels for task in corpus.tasks}
    how: dict[str, Any] = {"slot_requests": 64, "slot_seconds": None, "threads": 1}
    loads: dict[str, list[Load]] = {name: [] for name in SHARES}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(processes.tanbr(folder, work, practice=share, **how))
            for name, share in SHARES.items()
        }
        pids = [pid for _, pid in servers.values()]
        for port, pid in servers.values():
            with processes.alone(pid, pids):
                for some in np.split(rng.permutation(len(rows))[: TAUGHT * 64], TAUGHT):
                    _teach(port, [rows[i] for i in some], labels)
        for number in range(2 * rounds):
            name = list(SHARES)[(number + number // 2) % 2]  # A B B A
            port, pid = servers[name]
            drawn = np.random.default_rng(number // 2).integers(len(rows), size=count + 64)
            bodies = iter([classify([rows[i].text]) for i in drawn])
            with processes.alone(pid, pids):
                loads[name].append(asyncio.run(drive(port, bodies, connections=64, until=after(count), rate=RATE)))
        practised = ask(servers["practice"][0], "GET", "/v1/state")[1]["practice"]["exercises"]
    whole = {name: np.quantile(np.concatenate([one.seconds for one in of]), 0.99) for name, of in loads.items()}
    return {
        "rounds": {
            name: {f"p{100 * q:g}_ms": [round(1e3 * one.quantile(q), 2) for one in of] for q in (0.5, 0.95, 0.99)}
            for name, of in loads.items()
        },
        "p99_over_without": round(float(whole["practice"] / whole["no practice"]), 3),
        "exercises": practised,
    }


def _teach(port: int, rows: list[Row], labels: dict[str, Any]) -> None:
    """Send rows, and the labels of those that have one."""
    outputs = ask(port, "POST", "/v1/classify", {"inputs": [row.text for row in rows]})[1]["outputs"]
    given = [
        {"request_id": one["request_id"], "task": row.task, "label": labels[row.task][int(row.target)]}
        for one, row in zip(outputs, rows, strict=True)
        if labels[row.task]
    ]
    status, said = ask(port, "POST", "/v1/feedback", {"feedback": given})
    assert status == 200, said
