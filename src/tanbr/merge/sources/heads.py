"""Heads with different labels as one head over all of them.

For an expert that lacks a label the mean of those that have it stands, so that every expert is a whole model, and a
blend is the sum of its experts here as everywhere. A label that one expert alone has is copied into every blend.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tanbr.errors import CheckpointError
from tanbr.moe.family import Block, Piece, Settings

HEAD = re.compile(r"(^|\.)(classifier|classification_head|score|logits_proj)\.")  # as transformers' classes name them
UNNAMED = re.compile(r"LABEL_\d+")


def labels_of(settings: Settings) -> tuple[str, ...]:
    """Give the labels of a model's head in the order of its columns."""
    names = settings.get("id2label")
    if not isinstance(names, Mapping):
        return ()
    return tuple(str(names[key]) for key in sorted(names, key=int))


@dataclass(frozen=True)
class JoinedHead:
    """The labels of the K experts' heads, and of the head over all of them."""

    of: tuple[tuple[str, ...], ...]  # (K,) in the order of each expert's columns

    @property
    def labels(self) -> tuple[str, ...]:
        """The union, in the order in which the experts name them."""
        return tuple(dict.fromkeys(label for labels in self.of for label in labels))

    def settings(self) -> dict[str, Any]:
        """Give what a configuration says of the joined head."""
        named = dict(enumerate(self.labels))
        return {"id2label": named, "label2id": {label: column for column, label in named.items()}}

    def check(self, names: Sequence[str]) -> None:
        """Refuse heads with unnamed labels, or with one label twice: their columns cannot be told apart."""
        for name, labels in zip(names, self.of, strict=True):
            if len(set(labels)) < len(labels):
                raise CheckpointError(f"{name} names a label twice ({', '.join(labels)}); give every column its own")
            if any(UNNAMED.fullmatch(label) for label in labels):
                raise CheckpointError(
                    f"the experts' labels differ, and {name} does not name its own ({', '.join(labels)}): give them as "
                    "labels = […] in a file that lists the experts"
                )

    def pieces(
        self, target: str, tensors: Sequence[str], tail: tuple[int, ...]
    ) -> tuple[list[Piece], dict[tuple[Block, ...], frozenset[int]]]:
        """Cut a tensor (labels, *tail) into pieces of the experts' own (K,); also, which experts lack whose blocks."""
        width, K = math.prod(tail), len(self.of)
        found, absent = [], {}
        for held, run in groupby(enumerate(self.labels), key=self._holders):
            start, *more = (column for column, _ in run)  # which the same experts hold in the same order
            shape = (1 + len(more), *tail)
            blocks = {k: (tensors[k], (start + away) * width) for k, away in held}
            first = next(iter(blocks.values()))
            if len(blocks) == 1:
                found.append(Piece(target, shape, (first,), (1.0,), start=start))
                continue
            every = tuple(blocks.get(k, first) for k in range(K))
            found.append(Piece(target, shape, every, start=start))
            if len(blocks) < K:
                absent[every] = frozenset(set(range(K)) - set(blocks))
        return found, absent

    def _holders(self, at: tuple[int, str]) -> list[tuple[int, int]]:
        """List the experts that have the label of a column, and how far from there their own column is."""
        return [(k, labels.index(at[1]) - at[0]) for k, labels in enumerate(self.of) if at[1] in labels]
