"""A queue of requests of its own, with a plain queue where a learner would be."""

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.serve.config import ServeConfig
from tanbr.serve.engine import Engine
from tanbr.serve.ids import RequestIds
from tanbr.serve.panel import Message
from tanbr.serve.queue import Queue

IDS = RequestIds(bytes(32))


def queue_of(source: Moe | Path, *, backend: str = "torch", **settings: Any) -> tuple[Queue, "SimpleQueue[Message]"]:
    """Make a queue that is not started, of the even blend, version 1, slot 7."""
    moe = source if isinstance(source, Moe) else open_moe(source)
    config = ServeConfig.model_validate({"workers": 2, "threads": 1, "merge_share": 1.0} | settings)
    K = moe.num_experts
    engine = Engine(
        moe,
        backend=backend,
        blend=np.full(K, 1 / K),
        version=1,
        slot=7,
        spare=not config.low_memory,
        batch=config.batch,
        max_length=config.max_length,
    )
    queue: SimpleQueue[Message] = SimpleQueue()
    return Queue(engine, IDS, tasks=() if engine.writes else tiny.TASKS, config=config, outbox=queue.put), queue
