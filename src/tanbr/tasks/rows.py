"""What a task is, and one labelled example of it: the same for GLUE and for the generated tasks.

For tasks whose answers are whole texts, `WRITTEN` says how near an answer comes to the one that was wanted, in [0, 1].
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from tanbr.errors import DataError
from tanbr.types import Text


def exact_match(text: str, wanted: str) -> float:
    """1 for the same words, whatever the spaces between them; otherwise 0."""
    return float(text.split() == wanted.split())


def rouge_l(text: str, wanted: str) -> float:
    """ROUGE-L: the F-score of the longest common subsequence of words, in lower case and without punctuation."""
    one, other = (re.findall(r"\w+", side.lower()) for side in (text, wanted))
    if not one or not other:
        return float(one == other)
    common = [0] * (len(other) + 1)  # lengths of the longest common subsequences, row by row of the usual table
    for word in one:
        before, common = common, [0]
        for place, against in enumerate(other):
            common.append(before[place] + 1 if word == against else max(before[place + 1], common[-1]))
    return 2.0 * common[-1] / (len(one) + len(other))  # F = 2PR / (P + R), with P and R over the two lengths


WRITTEN: dict[str, Callable[[str, str], float]] = {"exact match": exact_match, "rouge-l": rouge_l}


@dataclass(frozen=True, slots=True)
class Task:
    """A text task. Classification has `labels`; graded tasks have none, and a score in `scale` instead.

    Where whole texts are wanted, `labels` are all of these, and the metrics say how near an answer comes to its own.
    """

    name: str
    metrics: tuple[str, ...]  # names in `metrics.METRICS` or in `WRITTEN`; the task's figure is their mean
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
