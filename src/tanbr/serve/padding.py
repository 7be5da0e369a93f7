"""Texts of like length together, so that little of what the model reads is padding."""

from collections.abc import Sequence

import numpy as np

from tanbr.moe.text import Columns, TextEncoder
from tanbr.serve.backends import Backend
from tanbr.types import FloatArray

PASS = 64  # tokens that the fixed cost of a forward pass is worth, about, on a CPU


def classify(backend: Backend, columns: Columns, encoder: TextEncoder, *, batch: int) -> FloatArray:
    """Answer encoded texts: logits (n, columns); at most `batch` texts a pass, those of like length together."""
    lengths = [len(row) for row in columns["input_ids"]]
    logits = np.empty((len(lengths), len(backend.columns)))
    for group in like_lengths(lengths, most=batch) if lengths else ():
        logits[group] = backend.classify(
            encoder.pad({name: [rows[i] for i in group] for name, rows in columns.items()})
        )
    return logits


def like_lengths(lengths: Sequence[int], *, most: int, fixed: int = PASS) -> list[list[int]]:
    """Cut rows (n,) into groups of at most `most`, each padded to its longest, so that all together cost least.

    A group costs its padded tokens and the `fixed` cost of a forward pass. The groups hold places in `lengths`, sorted
    by length; where one group is best, its rows keep their order.
    """
    n = len(lengths)
    if n <= most and n * max(lengths) - sum(lengths) <= fixed:  # there is less padding than a second pass costs
        return [list(range(n))]
    order = sorted(range(n), key=lengths.__getitem__)
    least = [0.0] + [float("inf")] * n  # cost of the first rows …
    begins = [0] * (n + 1)  # … and where their last group begins
    for end in range(1, n + 1):
        longest = lengths[order[end - 1]]
        for begin in range(max(0, end - most), end):
            cost = least[begin] + longest * (end - begin) + fixed
            if cost < least[end]:
                least[end], begins[end] = cost, begin
    groups, end = [], n
    while end:
        groups.append(order[begins[end] : end])
        end = begins[end]
    return groups[::-1]
