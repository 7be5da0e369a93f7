"""Requests become numbers: three views of hashed n-grams, and surface features. No text is kept.

A batch is read in one pass: words are looked up in a cache of hashes, and everything behind that is array arithmetic
over the concatenated batch, so that a request costs a few tens of microseconds.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tanbr.errors import InputError
from tanbr.monitor.ragged import Ragged
from tanbr.types import FloatArray, Text

VIEWS = (
    "roles",  # each word, with the text it stands in and whether the other text has it too
    "edges",  # the words each text opens and closes with
    "bytes",  # three bytes in a row
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
MAX_WORDS = 128  # of each text of a request; the served models read no further
MAX_CHARS = 1024  # likewise

_TOKEN = re.compile(r"\w+|[^\w\s]")
_START, _BREAK, _END = "<start>", "<break>", "<end>"  # frame a request; no match of _TOKEN looks like these
_CACHED_WORDS = 1 << 17
_ODD = np.uint64(0x9E3779B97F4A7C15)
_SALT = np.uint64(0xC2B2AE3D27D4EB4F) * np.arange(8, dtype=np.uint64)
_SEPARATOR, _TERMINATOR = 0x1F, 0x03  # "unit separator" between the texts of a request, "end of text" twice behind it

_BYTE = np.arange(256, dtype=np.uint8)
_MARKS = np.isin(_BYTE, np.frombuffer(b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", dtype=np.uint8))
_CAPITALS = np.isin(_BYTE, np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", dtype=np.uint8))
_DIGITS = np.isin(_BYTE, np.frombuffer(b"0123456789", dtype=np.uint8))


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


class _WordHashes(dict[str, int]):
    """64-bit hashes of words in lower case, the same in every process; starts afresh when full."""

    def __missing__(self, word: str) -> int:
        if len(self) >= _CACHED_WORDS:
            self.clear()
        value = self[word] = _hash(word.lower())
        return value


_HASHES = _WordHashes()


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


def as_pairs(texts: Sequence[Text]) -> list[tuple[str, str]]:
    """Check requests and cut them to length; the second text of a single one is empty."""
    if isinstance(texts, str | bytes):
        raise InputError(f"texts must be a list of requests (got one {type(texts).__name__}); put it in a list")
    pairs = []
    for index, text in enumerate(texts):
        if isinstance(text, str):
            pairs.append((text[:MAX_CHARS], ""))
        elif isinstance(text, tuple | list) and [type(part) for part in text] == [str, str]:
            pairs.append((text[0][:MAX_CHARS], text[1][:MAX_CHARS]))
        else:
            kind = type(text).__name__
            raise InputError(f"request {index} must be a text or a pair of texts (got {kind}: {text!r:.60})")
    return pairs


def read(texts: Sequence[Text]) -> Features:
    """Read a batch of requests."""
    pairs = as_pairs(texts)
    if not pairs:
        return Features.empty()
    is_pair = np.array([not isinstance(text, str) for text in texts])
    spans = [f"{first}\x1f{second}\x03\x03" for first, second in pairs]
    tokens = [(_TOKEN.findall(first)[:MAX_WORDS], _TOKEN.findall(second)[:MAX_WORDS]) for first, second in pairs]
    roles, edges, word_surface = _read_words(tokens, is_pair)
    grams, byte_surface = _read_bytes(spans, words=np.array([len(one) + len(two) for one, two in tokens]))
    return Features(
        keys=np.fromiter(map(_hash, spans), dtype=np.uint64, count=len(spans)),
        views={"roles": roles, "edges": edges, "bytes": grams},
        surface=np.concatenate([word_surface, byte_surface], axis=1),
    )


def _read_words(
    tokens: Sequence[tuple[list[str], list[str]]], is_pair: NDArray[np.bool_]
) -> tuple[Ragged, Ragged, FloatArray]:
    """Read the batch as one row of T tokens, each request framed: `<start> a b <break> c d <end>`."""
    first = np.array([len(one) for one, _ in tokens])  # (n,) words
    second = np.array([len(two) for _, two in tokens])
    starts = _starts(first + second + 3)
    breaks, ends = starts[:-1] + first + 1, starts[1:] - 1
    framed = chain.from_iterable((_START, *one, _BREAK, *two, _END) for one, two in tokens)
    words = np.fromiter(map(_HASHES.__getitem__, framed), dtype=np.uint64, count=int(starts[-1]))  # (T,)

    owner = np.repeat(np.arange(len(tokens)), first + second + 3)
    in_second = np.arange(len(words)) > breaks[owner]
    own = words + owner.astype(np.uint64) * _ODD  # the same word in another request is another word
    shared = _shared(own, in_second)
    shared_pairs = _shared(own * _ODD + np.roll(own, -1), in_second)
    roles = words * _ODD + _SALT[2 * in_second + shared]

    near = (starts[:-1] + 1, starts[:-1] + 2, breaks + 1, np.minimum(breaks + 2, ends))  # without words: the frame
    opens, then, opens_second, then_second = (words[position] for position in near)
    openings = [opens, opens * _ODD + then, opens_second, opens_second * _ODD + then_second]
    edges = np.stack([*openings, words[breaks - 1], words[ends - 1]], axis=1) + _SALT[:6]

    parts = np.stack([starts[:-1], breaks], axis=1).ravel()
    hits = np.add.reduceat(shared, parts, dtype=np.float64).reshape(-1, 2)
    pair_hits = np.add.reduceat(shared_pairs, parts, dtype=np.float64).reshape(-1, 2)
    surface = np.column_stack(
        [
            is_pair,
            np.log1p(first),
            np.log1p(second),
            is_pair * np.log((second + 1) / (first + 1)),
            hits[:, 0] / np.maximum(first, 1),
            hits[:, 1] / np.maximum(second, 1),
            pair_hits[:, 1] / np.maximum(second, 1),
        ]
    )
    return Ragged(roles, starts), Ragged(edges.ravel(), 6 * np.arange(len(tokens) + 1)), surface


def _shared(values: NDArray[np.uint64], in_second: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Tell which values of the first texts are in the second ones as well, and the other way round."""
    shared = np.zeros(len(values), dtype=bool)
    one, two = values[~in_second], values[in_second]
    shared[~in_second] = np.isin(one, two)
    shared[in_second] = np.isin(two, one)
    return shared


def _read_bytes(spans: Sequence[str], words: NDArray[np.int64]) -> tuple[Ragged, FloatArray]:
    """Read the batch as one row of bytes: 3-grams, and the habits of writing."""
    encoded = [span.encode("utf-8", "surrogatepass") for span in spans]
    buffer = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    starts = _starts([len(span) for span in encoded])
    separators = np.flatnonzero(buffer == _SEPARATOR)
    if len(separators) != len(spans):  # a text holds one itself: each request's first counts
        separators = separators[np.searchsorted(separators, starts[:-1])]

    wide = buffer.astype(np.uint64)
    grams = (wide << np.uint64(16)) | (np.roll(wide, -1) << np.uint64(8)) | np.roll(wide, -2)
    for back in (1, 2):
        grams[starts[1:] - back] = _TERMINATOR  # they reach into the next request

    parts = np.stack([starts[:-1], separators], axis=1).ravel()

    def count(hits: NDArray[np.bool_]) -> FloatArray:  # (n, 2): in the first text, in the second
        return np.asarray(np.add.reduceat(hits, parts, dtype=np.float64).reshape(-1, 2))

    marks = _MARKS[buffer]
    size = np.diff(starts) - 3.0
    some = np.maximum(size, 1.0)
    surface = np.column_stack(
        [
            np.minimum(count(buffer == ord("?")), 2),
            np.log1p(count((buffer == ord(" ")) & np.roll(marks, -1)).sum(axis=1)),
            np.log1p(count(marks).sum(axis=1)),
            np.sqrt(count(_CAPITALS[buffer]).sum(axis=1) / some),
            np.sqrt(count(_DIGITS[buffer]).sum(axis=1) / some),
            size / np.maximum(words, 1),
            marks[separators - 1],
            marks[starts[1:] - 3],
        ]
    )
    return Ragged(grams, starts), surface


def _starts(lengths: ArrayLike) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])
