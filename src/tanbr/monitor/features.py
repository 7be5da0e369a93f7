"""Requests become numbers: hashed word 1-2-grams, byte 3-grams, and surface features. No text is kept.

One pass over a whole batch. Words are hashed once per process (a bounded cache); everything behind that is array
arithmetic over the concatenated batch, so that a request costs a few tens of microseconds.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tanbr.errors import InputError
from tanbr.monitor.ragged import Ragged
from tanbr.types import FloatArray, Text

MAX_WORDS = 128  # of each text of a request; the served models read no further
MAX_CHARS = 2048  # likewise

SURFACE = (
    "is a pair",
    "words in the first text",
    "words in the second text",
    "length of the second by the first",
    "shared words by the shorter text",
    "shared words by the longer text",
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

_TOKEN = re.compile(r"\w+|[^\w\s]")
_START, _BREAK, _END = "<start>", "<break>", "<end>"  # no match of _TOKEN looks like these
_CACHED_WORDS = 1 << 17
_ODD = np.uint64(0x9E3779B97F4A7C15)
_TERMINATOR = 3  # ASCII "end of text", twice behind every request

_BYTE = np.arange(256, dtype=np.uint8)
_MARKS = np.isin(_BYTE, np.frombuffer(b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", dtype=np.uint8))
_CAPITALS = np.isin(_BYTE, np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", dtype=np.uint8))
_DIGITS = np.isin(_BYTE, np.frombuffer(b"0123456789", dtype=np.uint8))


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


class _WordHashes(dict[str, int]):
    """64-bit hashes of words, the same in every process; starts afresh when full."""

    def __missing__(self, word: str) -> int:
        if len(self) >= _CACHED_WORDS:
            self.clear()
        value = self[word] = _hash(word)
        return value


_HASHES = _WordHashes()


@dataclass(frozen=True, eq=False)
class Features:
    """What is read from n requests."""

    keys: NDArray[np.uint64]  # (n,) hash of the whole request
    words: Ragged  # n rows: hashes of word 1-2-grams
    chars: Ragged  # n rows: byte 3-grams, as numbers below 2^24
    surface: FloatArray  # (n, len(SURFACE))

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: NDArray[np.int64]) -> "Features":
        """Copy the requests asked for, in that order."""
        return Features(self.keys[rows], self.words.take(rows), self.chars.take(rows), self.surface[rows])

    @staticmethod
    def concatenate(parts: Sequence["Features"]) -> "Features":
        """Put the requests of all parts below one another."""
        return Features(
            np.concatenate([part.keys for part in parts]),
            Ragged.concatenate([part.words for part in parts]),
            Ragged.concatenate([part.chars for part in parts]),
            np.concatenate([part.surface for part in parts]),
        )


def read(texts: Sequence[Text]) -> Features:
    """Read a batch of requests."""
    pairs = [_as_pair(text, index) for index, text in enumerate(texts)]
    tokens = [(_TOKEN.findall(first)[:MAX_WORDS], _TOKEN.findall(second)[:MAX_WORDS]) for first, second in pairs]
    spans = [f"{first}\x1f{second}\x03\x03" for first, second in pairs]
    raw = "".join(spans).encode("utf-8", "surrogatepass")
    lengths = [len(span) for span in spans]
    if len(raw) != sum(lengths):  # beyond ASCII, a character is more than a byte
        lengths = [len(span.encode("utf-8", "surrogatepass")) for span in spans]
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    buffer = np.frombuffer(raw, dtype=np.uint8)
    return Features(
        keys=np.fromiter(map(_hash, spans), dtype=np.uint64, count=len(spans)),
        words=_word_grams(tokens),
        chars=_byte_grams(buffer, starts),
        surface=_surface(texts, tokens, buffer, starts),
    )


def _as_pair(text: Text, index: int) -> tuple[str, str]:
    if isinstance(text, str):
        return text[:MAX_CHARS], ""
    if isinstance(text, tuple | list) and len(text) == 2 and all(isinstance(part, str) for part in text):
        return text[0][:MAX_CHARS], text[1][:MAX_CHARS]
    raise InputError(f"request {index} must be a text or a pair of texts (got {type(text).__name__}: {text!r:.60})")


def _word_grams(tokens: Sequence[tuple[list[str], list[str]]]) -> Ragged:
    """Hash `<start> a b <break> c d <end>`: each word, and each word with the next."""
    framed = chain.from_iterable((_START, *first, _BREAK, *second, _END) for first, second in tokens)
    lengths = [len(first) + len(second) + 3 for first, second in tokens]
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    single = np.fromiter(map(_HASHES.__getitem__, framed), dtype=np.uint64, count=int(starts[-1]))
    grams = np.empty((len(single), 2), dtype=np.uint64)
    grams[:, 0] = single
    grams[:, 1] = single * _ODD + np.roll(single, -1)  # <end> is followed by <start> everywhere, the last one too
    return Ragged(grams.ravel(), 2 * starts)


def _byte_grams(buffer: NDArray[np.uint8], starts: NDArray[np.int64]) -> Ragged:
    """Make each three bytes in a row a number; the two that reach into the next request count as terminators."""
    wide = buffer.astype(np.uint64)
    grams = (wide << np.uint64(16)) | (np.roll(wide, -1) << np.uint64(8)) | np.roll(wide, -2)
    for back in (1, 2):
        grams[starts[1:] - back] = _TERMINATOR * 0x010101
    return Ragged(grams, starts)


def _surface(
    texts: Sequence[Text],
    tokens: Sequence[tuple[list[str], list[str]]],
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int64],
) -> FloatArray:
    if not tokens:
        return np.zeros((0, len(SURFACE)))
    pair = np.array([not isinstance(text, str) for text in texts], dtype=np.float64)
    first = np.array([len(one) for one, _ in tokens], dtype=np.float64)
    second = np.array([len(two) for _, two in tokens], dtype=np.float64)
    shared = np.array([len(set(one).intersection(two)) for one, two in tokens], dtype=np.float64)
    breaks = np.flatnonzero(buffer == 0x1F)
    if len(breaks) != len(tokens):  # a text holds the separator itself
        breaks = breaks[np.searchsorted(breaks, starts[:-1])]
    parts = np.stack([starts[:-1], breaks], axis=1).ravel()  # where the first and the second text of each begin

    def count(hits: NDArray[np.bool_]) -> FloatArray:  # (n, 2)
        return np.add.reduceat(hits, parts, dtype=np.float64).reshape(-1, 2)

    marks = _MARKS[buffer]
    questions = count(buffer == ord("?"))
    spaced = count((buffer == ord(" ")) & np.roll(marks, -1)).sum(axis=1)
    size = np.diff(starts) - 3.0
    per_char = 1.0 / np.maximum(size, 1.0)
    return np.column_stack(
        [
            pair,
            np.log1p(first),
            np.log1p(second),
            pair * np.log((second + 1) / (first + 1)),
            shared / np.maximum(np.minimum(first, second), 1),
            shared / np.maximum(np.maximum(first, second), 1),
            np.minimum(questions, 2),
            np.log1p(spaced),
            np.log1p(count(marks).sum(axis=1)),
            np.sqrt(count(_CAPITALS[buffer]).sum(axis=1) * per_char),
            np.sqrt(count(_DIGITS[buffer]).sum(axis=1) * per_char),
            size / np.maximum(first + second, 1),
            marks[breaks - 1],
            marks[starts[1:] - 3],
        ]
    )
