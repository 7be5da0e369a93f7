"""What practice does to the latency of single requests: two servers of one model in turn, one of which practises.

    python -m tanbr.lab.studies.practice_latency out/minilm/model glue/ --rate 20 --rounds 4 --out latency.json

Requests come at random moments, whatever is still waiting; latency counts from the moment a request came. While one
server is measured the other one is stopped.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tanbr.files import write_atomically
from tanbr.lab.corpus import of_data
from tanbr.serve.web.client import Client, ServerError
from tanbr.tasks.rows import Row

SHARES = {"practice": 0.1, "no practice": 0.0}
TAUGHT = 12  # slots of labelled requests before the first round: there is something to practise on


def _client(server: subprocess.Popen[bytes], port: int) -> Client:
    client = Client(f"http://127.0.0.1:{port}")
    for _ in range(900):
        try:
            client.state()
        except ServerError:
            time.sleep(0.2)
        else:
            return client
    raise SystemExit(f"the server did not start (exit code {server.poll()})")


def _taught(client: Client, rows: list[Row], labels: dict[str, Any]) -> None:
    for start in range(0, len(rows), 16):
        some = rows[start : start + 16]
        outputs = client.classify([row.text for row in some])["outputs"]
        client.feedback([
            {"request_id": one["request_id"], "task": row.task, "label": labels[row.task][int(row.target)]}
            for one, row in zip(outputs, some, strict=True) if labels[row.task]
        ])  # fmt: skip


def round_of(client: Client, rows: list[Row], *, rate: float, rng: np.random.Generator) -> list[float]:
    """Send each row at its moment; the seconds until each was answered."""
    moments = time.perf_counter() + np.cumsum(rng.exponential(1.0 / rate, len(rows)))

    def send(row: Row, moment: float) -> float:
        time.sleep(max(0.0, moment - time.perf_counter()))
        client.classify([row.text])
        return time.perf_counter() - moment

    with ThreadPoolExecutor(64) as pool:
        return list(pool.map(send, rows, moments.tolist()))


def main() -> None:
    """Read the command line, measure, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("data", type=Path, nargs="?", help="the data set; generated tasks if none")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second")
    parser.add_argument("--requests", type=int, default=500, help="of a round")
    parser.add_argument("--rounds", type=int, default=4, help="of each server")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    given = parser.parse_args()
    corpus, rng = of_data(given.data), np.random.default_rng(0)
    rows = [row for of_task in corpus.stream.values() for row in of_task]
    labels = {task.name: task.labels for task in corpus.tasks}
    servers: dict[str, tuple[subprocess.Popen[bytes], Client]] = {}
    seconds: dict[str, list[list[float]]] = {name: [] for name in SHARES}
    with tempfile.TemporaryDirectory() as work:
        try:
            for name, share in SHARES.items():
                with socket.socket() as free:
                    free.bind(("127.0.0.1", 0))
                    port = free.getsockname()[1]
                settings = Path(work) / f"{share}.toml"
                settings.write_text(f"[serve]\npractice = {share}\nslot_requests = 64\nthreads = 1\n", encoding="utf-8")
                command = ["serve", str(given.checkpoint), "--port", str(port), "--config", str(settings)]
                command = [sys.executable, "-m", "tanbr", *command, "--state", f"{work}/state-{share}", "--no-check"]
                server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                servers[name] = server, _client(server, port)
                _taught(servers[name][1], [rows[i] for i in rng.permutation(len(rows))[: TAUGHT * 64]], labels)
                server.send_signal(signal.SIGSTOP)
            for number in range(2 * given.rounds):
                name = list(SHARES)[(number + number // 2) % 2]  # A B B A
                server, client = servers[name]
                server.send_signal(signal.SIGCONT)
                some = [rows[i] for i in np.random.default_rng(number // 2).integers(len(rows), size=given.requests)]
                seconds[name].append(round_of(client, some, rate=given.rate, rng=np.random.default_rng(number // 2)))
                server.send_signal(signal.SIGSTOP)
            server, client = servers["practice"]
            server.send_signal(signal.SIGCONT)
            state = client.state()
        finally:
            for server, _ in servers.values():
                server.send_signal(signal.SIGCONT)
                server.terminate()
                server.wait()
    quantiles = {
        name: {f"p{q}_ms": [round(1e3 * float(np.percentile(one, q)), 2) for one in of] for q in (50, 95, 99)}
        for name, of in seconds.items()
    }
    whole = {name: float(np.percentile(np.concatenate(of), 99)) for name, of in seconds.items()}
    found = {
        "command": "python -m tanbr.lab.studies.practice_latency " + " ".join(sys.argv[1:]), "cores": os.cpu_count(),
        "rounds": quantiles, "p99_over_without": round(whole["practice"] / whole["no practice"], 3),
        "exercises": state["practice"]["exercises"],
    }  # fmt: skip
    print(json.dumps(found, indent=1))
    write_atomically(given.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
