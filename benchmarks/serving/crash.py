"""A nursery of servers that are going to be killed: it imports everything once, then forks a server per line of input.

Reads {"state", "port", "checkpoint", "slot_requests", "mood"} and prints the child's process id; an empty line waits
for the last child. The router counts what it is told, in its saved state.
"""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from tanbr.lab.corpus import taught_monitor
from tanbr.lab.settings import parse
from tanbr.lab.tasks import tiny
from tanbr.merge import open as open_moe
from tanbr.moe import embedded
from tanbr.monitor import Monitor
from tanbr.router import Tanbr
from tanbr.serve.service import Service
from tanbr.serve.web.auth import Tokens
from tanbr.serve.web.metrics import Metrics
from tanbr.serve.web.server import Server, bind


class Counted(Tanbr):
    """Tanbr that adds up the counts it is told."""

    def __init__(self, *sizes: int, total: float = 0.0, **settings: Any) -> None:
        super().__init__(*sizes, **settings)
        self._settings |= {"total": total}  # written and read with the state

    def resumed(self, path: str | Path) -> "Counted":
        """Go on with the total that was saved."""
        return self.load(path)

    def tell(self, decision: Any, reward: ArrayLike, counts: ArrayLike | None = None) -> None:
        """Learn and count."""
        super().tell(decision, reward, counts)
        self._settings["total"] += 0.0 if counts is None else float(np.sum(counts))

    def warm_start(self, blends: ArrayLike, rewards: ArrayLike, counts: ArrayLike | None = None) -> None:
        """Learn and count."""
        super().warm_start(blends, rewards, counts)
        self._settings["total"] += 0.0 if counts is None else float(np.sum(counts))


def serve(asked: dict[str, Any], taught: Path) -> None:
    """Run a server until somebody ends it."""
    torch.set_num_threads(1)
    logging.disable()
    config = parse({
        "serve": {"slot_requests": asked["slot_requests"], "threads": 1, "merge_share": 1.0, "keep_versions": 50},
        "http": {"port": asked["port"]},
    })  # fmt: skip
    service = Service(
        open_moe(embedded.path()),
        tasks=tiny.TASKS,
        config=config.serve,
        state=Path(asked["state"]),
        router=Counted(8, 8),
        monitor=Monitor.load(taught),
    )
    socket = bind(config.http)
    tokens = Tokens.read(dict(os.environ))
    Server(service, config=config.http, tokens=tokens, metrics=Metrics(), loopback=True).run(sockets=[socket])


def main() -> None:
    """Fork a server for every line."""
    taught = Path(sys.argv[1])
    if not taught.exists():
        taught_monitor(seed=0, per_task=30).save(taught)
    child = 0
    for line in sys.stdin:
        if not line.strip():
            os.waitpid(child, 0)
            print("gone", flush=True)
            continue
        child = os.fork()
        if not child:
            serve(json.loads(line), taught)
            os._exit(0)
        print(child, flush=True)


if __name__ == "__main__":
    main()
