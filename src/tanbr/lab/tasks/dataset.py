"""Where labelled rows come from: GLUE (its folder, or the hub), or files of your own. --data is read here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tanbr.lab.tasks import glue
from tanbr.tasks.own import OwnRows, is_own, read_own
from tanbr.tasks.rows import Row, Task

HELD = 0.2  # share of what is for training that is held back


@dataclass(frozen=True)
class Dataset:
    """Tasks whose rows are in three parts: to train on, held back, and for requests and figures alone."""

    place: str

    @cached_property
    def _own(self) -> OwnRows | None:
        path = Path(self.place)
        is_glue = self.place == glue.HUB or any((path / task.name).is_dir() for task in glue.TASKS)
        return read_own(path) if not is_glue and is_own(path) else None

    @property
    def name(self) -> str:
        """What to call it."""
        return "GLUE" if self._own is None else self._own.name

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks."""
        return glue.TASKS if self._own is None else self._own.tasks

    def divided(self) -> tuple[dict[str, list[Row]], dict[str, list[Row]]]:
        """Divide what is for training: 80% of each task to train on, 20% held back."""
        if self._own is None:
            return glue.divided(self.place)
        cut = {name: len(rows) - max(1, round(HELD * len(rows))) for name, rows in self._own.rows.items()}
        return (
            {name: list(rows[: cut[name]]) for name, rows in self._own.rows.items()},
            {name: list(rows[cut[name] :]) for name, rows in self._own.rows.items()},
        )

    def dev(self, *, limit: int | None = None, seed: int = 0) -> Mapping[str, Sequence[Row]]:
        """Give the rows that training leaves alone, at most `limit` a task."""
        if self._own is None:
            return glue.load(self.place, split="dev", limit=limit, seed=seed)
        return {name: rows[:limit] for name, rows in self._own.dev.items()}
