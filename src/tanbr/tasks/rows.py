"""What a task is, and one labelled example of it: the same for GLUE and for the generated tasks."""

from dataclasses import dataclass

from tanbr.errors import DataError
from tanbr.tasks.written import WRITTEN
from tanbr.types import Text


@dataclass(frozen=True, slots=True)
class Task:
    """A text task. Classification has `labels`; graded tasks have none, and a score in `scale` instead.

    Where whole texts are wanted, `labels` are all of these, and the metrics say how near an answer comes to its own.
    """

    name: str
    metrics: tuple[str, ...]  # names in `metrics.METRICS` or in `written.WRITTEN`; the task's figure is their mean
    labels: tuple[str, ...] = ()
    scale: tuple[float, float] = (0.0, 0.0)
    pair: bool = False  # whether a text is a pair of texts

    @property
    def graded(self) -> bool:
        """Whether the target is a number on `scale` rather than one of `labels`."""
        return not self.labels

    @property
    def written(self) -> bool:
        """Whether answers are whole texts, each scored by how near it comes to the one that was wanted."""
        return any(name in WRITTEN for name in self.metrics)

    def target(self, value: str, *, where: str) -> float:
        """Read a label, or a score on the scale; what it cannot be is a sentence that says `where` it stands."""
        if not self.graded:
            if value not in self.labels:
                raise DataError(f"{where}: label must be one of {', '.join(self.labels)} (got {value!r})")
            return float(self.labels.index(value))
        try:
            score = float(value)
        except ValueError:
            raise DataError(f"{where}: score must be a number (got {value!r})") from None
        low, high = self.scale
        if not low <= score <= high:
            raise DataError(f"{where}: score must lie in [{low:g}, {high:g}] (got {value})")
        return score


@dataclass(frozen=True, slots=True)
class Row:
    """One labelled example. `target` indexes `Task.labels`, or is the score of a graded task."""

    task: str
    text: Text
    target: float
