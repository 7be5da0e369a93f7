"""The machine's cores, shared by the workers: how many batches are answered at once, and with how many threads each."""

import os
from dataclasses import dataclass

from tanbr.serve.config import ServeConfig

ASKING = 32  # workers before an engine: they wait for it, and it makes batches of what all of them ask
MOST = 8  # workers by default: Python runs one thread at a time, and more would wait for it rather than for the model


def usable() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Cores:
    """What there is, and who gets it."""

    count: int
    workers: int  # that answer a batch each, at the same time
    fixed: int | None = None  # threads of a worker's arithmetic; None: as many cores as there are for each busy one

    @staticmethod
    def of(config: ServeConfig) -> "Cores":
        """Give every core a worker, up to a point; any other device runs a batch at a time, an engine what it likes."""
        count = usable()
        if config.engine is not None:
            return Cores(count, config.workers or ASKING, 1)
        alone = config.device != "cpu"
        return Cores(count, config.workers or (1 if alone else min(count, MOST)), config.threads)

    def threads(self, busy: int) -> int:
        """Give the threads of each worker while so many are busy: a lone one has all cores."""
        return self.fixed or max(1, self.count // max(1, busy))
