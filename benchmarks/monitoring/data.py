"""Texts with their tasks, slots drawn from them, and a monitor that has read some."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tanbr.lab.tasks import glue, tiny
from tanbr.monitor import Monitor
from tanbr.monitor.features import plain_text
from tanbr.types import FloatArray, Text

SIZES = (64, 256, 1024)
ALPHAS = (0.1, 0.3, 1.0)


@dataclass(frozen=True, eq=False)
class Data:
    """Texts per task: `history` to learn from, `live` to draw slots from."""

    name: str
    tasks: tuple[str, ...]
    history: tuple[tuple[Text, ...], ...]
    live: tuple[tuple[Text, ...], ...]

    def normalised(self) -> "Data":
        """Give the same without the writing habits of the sources."""

        def clean(pools: tuple[tuple[Text, ...], ...]) -> tuple[tuple[Text, ...], ...]:
            return tuple(tuple(plain_text(text) for text in pool) for pool in pools)

        return Data(f"{self.name}, normalised", self.tasks, clean(self.history), clean(self.live))

    def cut(self, per_task: int) -> tuple[list[Text], list[str]]:
        """Give the first texts of each task's history, and their tasks."""
        pairs = [(text, task) for task, pool in zip(self.tasks, self.history, strict=True) for text in pool[:per_task]]
        return [text for text, _ in pairs], [task for _, task in pairs]

    def everything(self) -> tuple[list[Text], NDArray[np.int64]]:
        """Give all live texts, and the index of their tasks."""
        labels = np.repeat(np.arange(len(self.tasks)), [len(pool) for pool in self.live])
        return [text for pool in self.live for text in pool], labels


def load(folder: str | None, *, history: int, live: int, seed: int) -> Data:
    """Read GLUE from a folder, or generate the tiny tasks."""
    if folder:
        train = glue.load(folder, split="train", limit=history, seed=seed)
        dev = glue.load(folder, split="dev", seed=seed)
        pools = [tuple(tuple(row.text for row in rows) for rows in split.values()) for split in (train, dev)]
        return Data("GLUE", tuple(train), *pools)
    names = tuple(task.name for task in tiny.TASKS)
    train_rows = [tiny.generate(name, history, seed=seed, split="train") for name in names]
    test_rows = [tiny.generate(name, live, seed=seed, split="test") for name in names]
    pools = [tuple(tuple(row.text for row in rows) for rows in split) for split in (train_rows, test_rows)]
    return Data("tiny", names, *pools)


def slots(data: Data, *, sizes: Sequence[int], repeats: int, seed: int) -> list[tuple[FloatArray, NDArray[np.int64]]]:
    """Draw slots: the mix each holds (V,), and the places of its texts in `data.everything()`."""
    rng = np.random.default_rng(seed)
    _, labels = data.everything()
    pools = [np.flatnonzero(labels == task) for task in range(len(data.tasks))]
    drawn = []
    for size in sizes:
        for alpha in ALPHAS:
            for _ in range(repeats):
                counts = rng.multinomial(size, rng.dirichlet(np.full(len(pools), alpha)))
                places = np.concatenate([rng.choice(pool, count) for pool, count in zip(pools, counts, strict=True)])
                drawn.append((counts / size, places))
    return drawn


def taught(data: Data, per_task: int) -> Monitor:
    """Build a monitor that has learned the history."""
    monitor = Monitor(data.tasks)
    monitor.learn(*data.cut(per_task))
    return monitor
