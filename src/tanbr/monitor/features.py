"""Requests become numbers: three views of hashed n-grams, and surface features. No text is kept.

A batch is read as a whole (`tokens.py`): a request costs a few tens of microseconds in a batch, a few hundred alone.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tanbr.errors import InputError
from tanbr.monitor.tokens import CAPITALS, DIGITS, MARKS, ODD, SALT, Batch, Ragged, Tokens
from tanbr.types import FloatArray, Text

VIEWS = (
    "roles",  # each word, with the text it stands in and whether the other text has it too
    "bytes",  # three bytes in a row
    "edges",  # the words each text opens and closes with
)
SURFACE = (
    "is a pair",
    "words in the first text",
    "words in the second text",
    "length of the second by the first",
    "share of the first's words that the second has",
    "share of the second's words that the first has",
    "share of the second's word pairs that the first has",
    "question marks in the first text",
    "question marks in the second text",
    "spaces before marks",
    "marks",
    "capitals",
    "digits",
    "characters a word",
    "first text ends with a mark",
    "second text ends with a mark",
)
BATCH = 1024  # requests read at once, which bounds the memory
RELATIONS = SURFACE[1:7]  # lengths and overlaps, which tell more together than each alone


@dataclass(frozen=True, eq=False)
class Features:
    """What is read from n requests."""

    keys: NDArray[np.uint64]  # (n,) hash of the whole request
    views: dict[str, Ragged]  # by VIEWS: n rows of hashed n-grams each
    surface: FloatArray  # (n, len(SURFACE))

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: NDArray[np.int64]) -> "Features":
        """Copy the requests asked for, in that order."""
        views = {name: view.take(rows) for name, view in self.views.items()}
        return Features(self.keys[rows], views, self.surface[rows])

    @staticmethod
    def concatenate(parts: Sequence["Features"]) -> "Features":
        """Put the requests of all parts below one another."""
        return Features(
            np.concatenate([part.keys for part in parts]),
            {name: Ragged.concatenate([part.views[name] for part in parts]) for name in VIEWS},
            np.concatenate([part.surface for part in parts]),
        )

    @staticmethod
    def empty() -> "Features":
        """No requests."""
        views = {name: Ragged.empty() for name in VIEWS}
        return Features(np.zeros(0, dtype=np.uint64), views, np.zeros((0, len(SURFACE))))


def check(texts: Sequence[Text]) -> None:
    """Refuse what is not a list of texts and pairs of texts."""
    if isinstance(texts, str | bytes):
        raise InputError(f"texts must be a list of requests (got one {type(texts).__name__}); put it in a list")
    for index, text in enumerate(texts):
        if isinstance(text, str):
            continue
        if not isinstance(text, tuple | list) or [type(part) for part in text] != [str, str]:
            kind = type(text).__name__
            raise InputError(f"request {index} must be a text or a pair of texts (got {kind}: {text!r:.60})")


def batches(texts: Sequence[Text], *, plain: bool = False) -> Iterator[tuple[Features, slice]]:
    """Read requests, or their `plain_text`, batch by batch, once all have proved to be texts; at least one batch."""
    check(texts)
    for start in range(0, max(len(texts), 1), BATCH):
        part = slice(start, min(start + BATCH, len(texts)))
        yield read([plain_text(text) for text in texts[part]] if plain else texts[part]), part


def plain_text(text: Text) -> Text:
    """Keep letters and digits, in lower case, with one space between words; close contractions up."""
    if not isinstance(text, str):
        return (str(plain_text(text[0])), str(plain_text(text[1])))
    closed = re.sub(r"\s*n\s?'\s?t\b", "nt", text.lower())
    closed = re.sub(r"\s*'\s*(?=(?:s|re|ve|ll|d|m)\b)", "", closed)
    return " ".join(re.findall(r"\w+", closed.replace("'", "")))


def read(texts: Sequence[Text]) -> Features:
    """Read a batch of requests that passed `check`."""
    if not texts:
        return Features.empty()
    batch = Batch.of(texts)
    tokens = Tokens.of(batch)
    surface = np.empty((len(texts), len(SURFACE)))
    views = {"roles": _read_roles(batch, tokens, surface), "edges": _read_edges(tokens), "bytes": _read_bytes(batch)}
    _read_habits(batch, tokens, surface)
    return Features(batch.keys(), views, surface)


def _read_roles(batch: Batch, tokens: Tokens, surface: FloatArray) -> Ragged:
    """Salt each word with its text and whether the other text has it too; lengths and overlaps to `surface`."""
    pairs = tokens.hashes * ODD
    pairs[:-1] += tokens.hashes[1:]
    pairs[tokens.starts[1:] - 1] = 0  # no pair reaches into the next request
    shared = np.array([_shared(tokens.hashes, tokens), _shared(pairs, tokens)])
    hits = np.add.reduceat(shared, tokens.parts, axis=1, dtype=np.float64)
    first, second = lengths = tokens.lengths
    surface[:, 0] = batch.is_pair
    surface[:, 1:3] = np.log1p(lengths).T
    surface[:, 3] = batch.is_pair * np.log((second + 1) / (first + 1))
    surface[:, 4] = hits[0, ::2] / np.maximum(first, 1)
    surface[:, 5:7] = (hits[:, 1::2] / np.maximum(second, 1)).T
    role = shared[0].astype(np.intp)
    for middle, end in zip(tokens.breaks.tolist(), tokens.starts[1:].tolist(), strict=True):
        role[middle + 1 : end] += 2
    return Ragged(tokens.hashes * ODD + SALT[role], tokens.starts)


def _shared(values: NDArray[np.uint64], tokens: Tokens) -> list[bool]:
    """Tell which values of the first texts are in the second ones as well, and the other way round.

    Sets, not sorted arrays: a request alone would pay ten calls into NumPy for its few dozen words.
    """
    listed, starts, shared = values.tolist(), tokens.starts.tolist(), []
    for start, middle, end in zip(starts, tokens.breaks.tolist(), starts[1:], strict=False):
        first, second = listed[start : middle + 1], listed[middle + 1 : end]
        one = len(second) == 1  # no second text: its frame is all there is
        both: Collection[int] = [v for v in second if v in first] if one else set(first).intersection(second)
        shared += [value in both for value in listed[start:end]] if both else [False] * (end - start)
    return shared


def _read_edges(tokens: Tokens) -> Ragged:
    """Take the words each text opens with, one and two, and closes with; where there are none, the frame."""
    words, starts, breaks, ends = tokens.hashes, tokens.starts[:-1], tokens.breaks, tokens.starts[1:] - 1
    opens, opens_second = words[starts + 1], words[breaks + 1]
    two, two_of_second = opens * ODD + words[starts + 2], opens_second * ODD + words[np.minimum(breaks + 2, ends)]
    edges = np.empty((len(breaks), 6), dtype=np.uint64)
    for place, word in enumerate((opens, two, opens_second, two_of_second, words[breaks - 1], words[ends - 1])):
        edges[:, place] = word
    return Ragged((edges + SALT[:6]).ravel(), 6 * np.arange(len(breaks) + 1))


def _read_bytes(batch: Batch) -> Ragged:
    """Make a number of each three bytes in a row; 0 of the two that would reach into the next request."""
    wide = batch.buffer.astype(np.uint64)
    threes = wide << np.uint64(16)
    threes[:-2] |= (wide[1:-1] << np.uint64(8)) | wide[2:]
    threes[batch.starts[1:] - 1] = 0
    threes[batch.starts[1:] - 2] = 0
    return Ragged(threes, batch.starts)


_HABITS = np.stack([np.arange(256) == ord("?"), np.arange(256) == ord(" "), MARKS, CAPITALS, DIGITS]).astype(np.uint8)


def _read_habits(batch: Batch, tokens: Tokens, surface: FloatArray) -> None:
    """Measure how the request is written, to `surface`."""
    hits = _HABITS[:, batch.buffer]
    marks = hits[2]
    hits[1, :-1] &= marks[1:]  # spaces before marks
    counts = np.add.reduceat(hits, batch.parts, axis=1, dtype=np.float64).reshape(len(hits), -1, 2)
    whole = counts.sum(axis=2)
    size = batch.starts[1:] - batch.starts[:-1] - 3.0
    surface[:, 7:9] = np.minimum(counts[0], 2)
    surface[:, 9:11] = np.log1p(whole[1:3]).T
    surface[:, 11:13] = np.sqrt(whole[3:] / np.maximum(size, 1)).T
    surface[:, 13] = size / np.maximum(tokens.lengths.sum(axis=0), 1)
    surface[:, 14] = marks[batch.breaks - 1]
    surface[:, 15] = marks[batch.starts[1:] - 2]
