"""What practice does to the latency of single requests: two servers of one model in turn, one of which practises.

    python benchmarks/practice.py out/minilm/model --data glue/ --rate 20 --rounds 4 --out latency.json

Requests come at a steady rate, whatever is still waiting; latency counts from the moment a request was due. While one
server is measured the other one is stopped. `--quick` sends few requests to the embedded model.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from serving import processes
from serving.client import Load, after, ask, classify, drive
from tanbr.files import write_atomically
from tanbr.lab.corpus import of_data
from tanbr.tasks.rows import Row

SHARES = {"practice": 0.1, "no practice": 0.0}
TAUGHT = 12  # slots of 64 labelled requests before the first round: there is something to practise on


def teach(port: int, rows: list[Row], labels: dict[str, Any]) -> None:
    """Send rows, and the labels of those that have one."""
    outputs = ask(port, "POST", "/v1/classify", {"inputs": [row.text for row in rows]})[1]["outputs"]
    given = [
        {"request_id": one["request_id"], "task": row.task, "label": labels[row.task][int(row.target)]}
        for one, row in zip(outputs, rows, strict=True)
        if labels[row.task]
    ]
    status, said = ask(port, "POST", "/v1/feedback", {"feedback": given})
    assert status == 200, said


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, nargs="?", help="the embedded model if none")
    parser.add_argument("--data", type=Path, help="the data set; generated tasks if none")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second")
    parser.add_argument("--requests", type=int, default=500, help="of a round")
    parser.add_argument("--rounds", type=int, default=4, help="of each server")
    parser.add_argument("--quick", action="store_true", help="a round of 20 requests")
    parser.add_argument("--out", type=Path, help="JSON file")
    given = parser.parse_args()
    count, rounds = (20, 1) if given.quick else (given.requests, given.rounds)
    corpus, rng = of_data(given.data), np.random.default_rng(0)
    rows = [row for of_task in corpus.stream.values() for row in of_task]
    labels = {task.name: task.labels for task in corpus.tasks}
    loads: dict[str, list[Load]] = {name: [] for name in SHARES}
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        how: dict[str, Any] = {"slot_requests": 64, "slot_seconds": None, "threads": 1}
        servers = {
            name: stack.enter_context(processes.tanbr(given.checkpoint, work, practice=share, **how))
            for name, share in SHARES.items()
        }
        pids = [pid for _, pid in servers.values()]
        for port, pid in servers.values():
            with processes.alone(pid, pids):
                for some in np.split(rng.permutation(len(rows))[: TAUGHT * 64], TAUGHT):
                    teach(port, [rows[i] for i in some], labels)
        for number in range(2 * rounds):
            name = list(SHARES)[(number + number // 2) % 2]  # A B B A
            port, pid = servers[name]
            drawn = np.random.default_rng(number // 2).integers(len(rows), size=count + 64)
            bodies = iter([classify([rows[i].text]) for i in drawn])
            with processes.alone(pid, pids):
                loads[name].append(
                    asyncio.run(drive(port, bodies, connections=64, until=after(count), rate=given.rate))
                )
        practised = ask(servers["practice"][0], "GET", "/v1/state")[1]["practice"]["exercises"]
    whole = {name: float(np.quantile(np.concatenate([one.seconds for one in of]), 0.99)) for name, of in loads.items()}
    found = {
        "command": " ".join(["python benchmarks/practice.py", *sys.argv[1:]]),
        "cores": os.cpu_count(),
        "rounds": {
            name: {f"p{100 * q:g}_ms": [round(1e3 * one.quantile(q), 2) for one in of] for q in (0.5, 0.95, 0.99)}
            for name, of in loads.items()
        },
        "p99_over_without": round(whole["practice"] / whole["no practice"], 3),
        "exercises": practised,
    }
    print(json.dumps(found, indent=1))
    if given.out:
        write_atomically(given.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
