"""How near a written answer comes to the one that was wanted, in [0, 1]: for tasks whose answers are whole texts."""

import re
from collections.abc import Callable, Sequence


def exact_match(text: str, wanted: str) -> float:
    """1 for the same words, whatever the spaces between them; otherwise 0."""
    return float(text.split() == wanted.split())


def rouge_l(text: str, wanted: str) -> float:
    """ROUGE-L: the F-score of the longest common subsequence of words, in lower case and without punctuation."""
    one, other = (re.findall(r"\w+", side.lower()) for side in (text, wanted))
    if not one or not other:
        return float(one == other)
    common = _common(one, other)
    return 2.0 * common / (len(one) + len(other))  # F = 2PR / (P + R), with P and R over the two lengths


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence, row by row of the usual table."""
    row = [0] * (len(other) + 1)
    for word in one:
        before = row
        row = [0]
        for place, against in enumerate(other):
            row.append(before[place] + 1 if word == against else max(before[place + 1], row[-1]))
    return row[-1]


WRITTEN: dict[str, Callable[[str, str], float]] = {"exact match": exact_match, "rouge-l": rouge_l}


def score(metrics: Sequence[str], text: str, wanted: str) -> float:
    """Give the mean of a task's metrics for one answer."""
    return sum(WRITTEN[name](text, wanted) for name in metrics) / len(metrics)
