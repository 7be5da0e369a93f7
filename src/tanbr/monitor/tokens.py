"""A batch of requests as one array of bytes, and the words and marks in it, by arithmetic over the whole array.

`Ragged` holds rows of unequal length: the n-grams of each request.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tanbr.types import FloatArray, Text

MAX_CHARS = 512  # of each text of a request; the served models read hardly further
ODD = np.uint64(0x9E3779B97F4A7C15)
BASE = np.uint64(0xD6E8FEB86659FD93)  # of the polynomial hash; odd, so that it has an inverse
SALT = np.uint64(0xC2B2AE3D27D4EB4F) * np.arange(8, dtype=np.uint64)

_BYTE = np.arange(256, dtype=np.uint8)
DIGITS = np.isin(_BYTE, np.frombuffer(b"0123456789", dtype=np.uint8))
CAPITALS = np.isin(_BYTE, np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", dtype=np.uint8))
_FOLDED = np.where(CAPITALS, _BYTE + 32, _BYTE).astype(np.uint8)  # in lower case
_LETTERS = DIGITS | np.isin(_FOLDED, np.frombuffer(b"abcdefghijklmnopqrstuvwxyz_", dtype=np.uint8)) | (_BYTE > 127)
_BLANKS = np.isin(_BYTE, np.frombuffer(b" \t\n\v\f\r", dtype=np.uint8))
_SINGLES = ~_LETTERS & ~_BLANKS  # marks and frames: a token each
MARKS = (_SINGLES & (_BYTE >= 32)) | np.isin(_BYTE, [ord("_")])

_START, _BREAK, _END = "\x02", "\x1f", "\x03"  # frame a request: `<start> first <break> second <end>`


@dataclass(frozen=True, eq=False)
class Ragged:
    """Row i is `values[starts[i]:starts[i + 1]]`."""

    values: NDArray[np.uint64]
    starts: NDArray[np.int64]  # (n + 1,)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many values each row holds (n,)."""
        return np.asarray(self.starts[1:] - self.starts[:-1])

    @property
    def owners(self) -> NDArray[np.int64]:
        """The row each value belongs to."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def take(self, rows: NDArray[np.int64]) -> "Ragged":
        """Copy the rows asked for, in that order."""
        lengths = self.lengths[rows]
        starts = starts_of(lengths)
        source = np.arange(starts[-1]) + np.repeat(self.starts[rows] - starts[:-1], lengths)
        return Ragged(self.values[source], starts)

    @staticmethod
    def concatenate(parts: Sequence["Ragged"]) -> "Ragged":
        """Put the rows of all parts below one another."""
        lengths = np.concatenate([part.lengths for part in parts])
        return Ragged(np.concatenate([part.values for part in parts]), starts_of(lengths))

    @staticmethod
    def empty() -> "Ragged":
        """No rows."""
        return Ragged(np.zeros(0, dtype=np.uint64), np.zeros(1, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Batch:
    """The requests, framed, one behind the other: N bytes."""

    buffer: NDArray[np.uint8]  # (N,)
    starts: NDArray[np.int64]  # (n + 1,) where each request begins
    breaks: NDArray[np.int64]  # (n,) where its <break> is
    is_pair: NDArray[np.bool_]  # (n,)

    @staticmethod
    def of(texts: Sequence[Text]) -> "Batch":
        """Frame the requests and put them behind one another."""
        single = [isinstance(text, str) for text in texts]
        pairs = [(text, "") if isinstance(text, str) else text for text in texts]
        firsts = [f"{_START}{first[:MAX_CHARS]}".encode("utf-8", "surrogatepass") for first, _ in pairs]
        seconds = [f"{_BREAK}{second[:MAX_CHARS]}{_END}".encode("utf-8", "surrogatepass") for _, second in pairs]
        sizes = np.array([[len(part) for part in firsts], [len(part) for part in seconds]], dtype=np.int64)
        starts = starts_of(sizes.sum(axis=0))
        buffer = np.frombuffer(b"".join(chain.from_iterable(zip(firsts, seconds, strict=True))), dtype=np.uint8)
        return Batch(buffer, starts, starts[:-1] + sizes[0], ~np.array(single))

    @property
    def parts(self) -> NDArray[np.int64]:
        """Where the first and the second text of each request begin (2n,)."""
        return _in_turn(self.starts[:-1], self.breaks)

    def keys(self) -> NDArray[np.uint64]:
        """Hash each request (n,)."""
        hashes = _span_hashes(self.buffer, self.starts[:-1], self.starts[1:])
        return hashes ^ (self.is_pair * SALT[1])


@dataclass(frozen=True, eq=False)
class Tokens:
    """The words and marks of the batch, the frames too: T tokens, at least three a request."""

    hashes: NDArray[np.uint64]  # (T,) in lower case
    starts: NDArray[np.int64]  # (n + 1,) the first token of each request
    breaks: NDArray[np.int64]  # (n,) the token that is its <break>

    @staticmethod
    def of(batch: Batch) -> "Tokens":
        """Find the tokens of every request."""
        letters, singles = _LETTERS[batch.buffer], _SINGLES[batch.buffer]
        begins, ends = singles.copy(), singles  # the batch begins and ends with a frame
        begins[1:] |= letters[1:] & ~letters[:-1]
        ends[:-1] |= letters[:-1] & ~letters[1:]
        firsts = np.flatnonzero(begins)
        hashes = _span_hashes(_FOLDED[batch.buffer], firsts, np.flatnonzero(ends) + 1)
        return Tokens(hashes, np.searchsorted(firsts, batch.starts), np.searchsorted(firsts, batch.breaks))

    @cached_property
    def lengths(self) -> FloatArray:
        """Words and marks in the first and the second text of each request (2, n)."""
        lengths = np.empty((2, len(self.breaks)))
        lengths[0] = self.breaks - self.starts[:-1] - 1
        lengths[1] = self.starts[1:] - self.breaks - 2
        return lengths

    @property
    def parts(self) -> NDArray[np.int64]:
        """The first token of the first and of the second text of each request (2n,)."""
        return _in_turn(self.starts[:-1], self.breaks)


def _in_turn(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """Take from both in turn (2n,); a request alone would pay `np.stack` more than the rest of the work."""
    both = np.empty((len(one), 2), dtype=np.int64)
    both[:, 0], both[:, 1] = one, other
    return both.ravel()


def starts_of(lengths: ArrayLike) -> NDArray[np.int64]:
    """Where rows of these lengths (n,) begin in one flat array, and where the last ends (n + 1,)."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])


def _powers(base: np.uint64, count: int) -> NDArray[np.uint64]:
    powers = np.full(count, base)
    powers[0] = 1
    return np.multiply.accumulate(powers)


_INVERSE = np.uint64(pow(int(BASE), -1, 1 << 64))
_TABLE = 1 << 14  # bytes of a batch for which the powers are computed once
_READY = _powers(BASE, _TABLE), _powers(_INVERSE, _TABLE)


def _span_hashes(buffer: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash spans of bytes to 64 bits, the same wherever they stand.

    Polynomial: the difference of two running sums of `byte · base^position` is `base^begin` times the span's hash,
    and arithmetic modulo 2^64 can divide by an odd number.
    """
    size = len(buffer)
    powers, inverses = _READY if size <= _TABLE else (_powers(BASE, size), _powers(_INVERSE, size))
    sums = np.zeros(size + 1, dtype=np.uint64)
    np.cumsum((buffer + np.uint64(1)) * powers[:size], out=sums[1:])
    hashes = (sums[ends] - sums[begins]) * inverses[begins]
    return (hashes ^ (hashes >> np.uint64(31))) * ODD
