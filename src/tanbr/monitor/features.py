"""Requests become numbers: three views of hashed n-grams, and surface features. No text is kept.

A batch is joined into one array of bytes; words, hashes and counts are array arithmetic over it, so that a request
costs a few tens of microseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
COARSE = (0, 1, 2, 4, 5, 7, 8, 9, 11)  # of SURFACE: those that traffic without labels falls apart by
RELATIONS = SURFACE[1:7]  # lengths and overlaps, which tell more together than each alone
MAX_CHARS = 512  # of each text of a request; the served models read hardly further

_START, _BREAK, _END = "\x02", "\x1f", "\x03"  # frame a request: `<start> first <break> second <end>`
_ODD = np.uint64(0x9E3779B97F4A7C15)
_BASE = np.uint64(0xD6E8FEB86659FD93)  # of the polynomial hash; odd, so that it has an inverse
_INVERSE = np.uint64(pow(int(_BASE), -1, 1 << 64))
_SALT = np.uint64(0xC2B2AE3D27D4EB4F) * np.arange(8, dtype=np.uint64)

_BYTE = np.arange(256, dtype=np.uint8)
_DIGITS = np.isin(_BYTE, np.frombuffer(b"0123456789", dtype=np.uint8))
_CAPITALS = np.isin(_BYTE, np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", dtype=np.uint8))
_FOLDED = np.where(_CAPITALS, _BYTE + 32, _BYTE).astype(np.uint8)  # in lower case
_LETTERS = _DIGITS | np.isin(_FOLDED, np.frombuffer(b"abcdefghijklmnopqrstuvwxyz_", dtype=np.uint8)) | (_BYTE > 127)
_BLANKS = np.isin(_BYTE, np.frombuffer(b" \t\n\v\f\r", dtype=np.uint8))
_MARKS = (~_LETTERS & ~_BLANKS & (_BYTE >= 32)) | np.isin(_BYTE, [ord("_")])


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


def read(texts: Sequence[Text]) -> Features:
    """Read a batch of requests that passed `check`."""
    if not texts:
        return Features.empty()
    batch = _Bytes.of(texts)
    tokens = _Tokens.of(batch)
    roles, word_surface = _read_roles(batch, tokens)
    return Features(
        keys=batch.keys(),
        views={"roles": roles, "edges": _read_edges(tokens), "bytes": _read_bytes(batch)},
        surface=np.concatenate([word_surface, _read_habits(batch, tokens)], axis=1),
    )


@dataclass(frozen=True, eq=False)
class _Bytes:
    """The requests, framed, one behind the other: N bytes."""

    buffer: NDArray[np.uint8]  # (N,)
    starts: NDArray[np.int64]  # (n + 1,) where each request begins
    breaks: NDArray[np.int64]  # (n,) where its <break> is
    is_pair: NDArray[np.bool_]  # (n,)

    @staticmethod
    def of(texts: Sequence[Text]) -> "_Bytes":
        pairs = [(text, "") if isinstance(text, str) else text for text in texts]
        firsts = [f"{_START}{first[:MAX_CHARS]}".encode("utf-8", "surrogatepass") for first, _ in pairs]
        seconds = [f"{_BREAK}{second[:MAX_CHARS]}{_END}".encode("utf-8", "surrogatepass") for _, second in pairs]
        sizes = np.fromiter(map(len, chain(firsts, seconds)), dtype=np.int64, count=2 * len(texts)).reshape(2, -1)
        starts = _starts(sizes.sum(axis=0))
        buffer = np.frombuffer(b"".join(chain.from_iterable(zip(firsts, seconds, strict=True))), dtype=np.uint8)
        is_pair = np.array([not isinstance(text, str) for text in texts])
        return _Bytes(buffer, starts, starts[:-1] + sizes[0], is_pair)

    @property
    def parts(self) -> NDArray[np.int64]:
        """Where the first and the second text of each request begin (2n,)."""
        return np.stack([self.starts[:-1], self.breaks], axis=1).ravel()

    def keys(self) -> NDArray[np.uint64]:
        """Hash each request (n,)."""
        hashes = _span_hashes(self.buffer, self.starts[:-1], self.starts[1:])
        return hashes ^ (self.is_pair * _SALT[1])


@dataclass(frozen=True, eq=False)
class _Tokens:
    """The words and marks of the batch, the frames too: T tokens, at least three a request."""

    hashes: NDArray[np.uint64]  # (T,) in lower case
    starts: NDArray[np.int64]  # (n + 1,) the first token of each request
    breaks: NDArray[np.int64]  # (n,) the token that is its <break>

    @staticmethod
    def of(batch: _Bytes) -> "_Tokens":
        letters = _LETTERS[batch.buffer]
        singles = ~letters & ~_BLANKS[batch.buffer]  # marks and frames: a token each
        begins = singles | (letters & ~np.roll(letters, 1))  # the batch begins and ends with a frame
        ends = singles | (letters & ~np.roll(letters, -1))
        hashes = _span_hashes(_FOLDED[batch.buffer], np.flatnonzero(begins), np.flatnonzero(ends) + 1)
        before = _starts(begins)  # (N + 1,) tokens that begin before each byte
        return _Tokens(hashes, before[batch.starts], before[batch.breaks])

    @property
    def lengths(self) -> FloatArray:
        """Words and marks in the first and the second text of each request (n, 2)."""
        return np.stack([self.breaks - self.starts[:-1] - 1, self.starts[1:] - self.breaks - 2], axis=1).astype(float)

    @property
    def parts(self) -> NDArray[np.int64]:
        """The first token of the first and of the second text of each request (2n,)."""
        return np.stack([self.starts[:-1], self.breaks], axis=1).ravel()


def _read_roles(batch: _Bytes, tokens: _Tokens) -> tuple[Ragged, FloatArray]:
    """Salt each word with the text it stands in and whether the other text has it; lengths and overlaps (n, 7)."""
    owner = np.repeat(np.arange(len(tokens.breaks)), np.diff(tokens.starts))
    in_second = np.arange(len(owner)) > tokens.breaks[owner]
    own = tokens.hashes + owner.astype(np.uint64) * _BASE  # the same word in another request is another word
    shared = _shared(own, in_second)
    shared_pairs = _shared(own * _ODD + np.roll(own, -1), in_second)
    roles = tokens.hashes * _ODD + _SALT[2 * in_second + shared]
    hits = np.add.reduceat(np.stack([shared, shared_pairs], axis=1), tokens.parts, dtype=np.float64).reshape(-1, 4)
    first, second = tokens.lengths.T
    surface = np.column_stack(
        [
            batch.is_pair,
            np.log1p(first),
            np.log1p(second),
            batch.is_pair * np.log((second + 1) / (first + 1)),
            hits[:, 0] / np.maximum(first, 1),
            hits[:, 2] / np.maximum(second, 1),
            hits[:, 3] / np.maximum(second, 1),
        ]
    )
    return Ragged(roles, tokens.starts), surface


def _shared(values: NDArray[np.uint64], in_second: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Tell which values of the first texts are in the second ones as well, and the other way round."""
    order = np.argsort(values)
    ordered = values[order]
    groups = np.cumsum(np.concatenate([[0], ordered[1:] != ordered[:-1]]))
    seconds = np.bincount(groups, weights=in_second[order])
    shared = np.empty(len(values), dtype=bool)
    shared[order] = ((seconds > 0) & (seconds < np.bincount(groups)))[groups]
    return shared


def _read_edges(tokens: _Tokens) -> Ragged:
    """Take the words each text opens with, one and two, and closes with; where there are none, the frame."""
    words, starts, breaks, ends = tokens.hashes, tokens.starts[:-1], tokens.breaks, tokens.starts[1:] - 1
    opens, opens_second = words[starts + 1], words[breaks + 1]
    two, two_of_second = opens * _ODD + words[starts + 2], opens_second * _ODD + words[np.minimum(breaks + 2, ends)]
    edges = np.stack([opens, two, opens_second, two_of_second, words[breaks - 1], words[ends - 1]], axis=1)
    return Ragged((edges + _SALT[:6]).ravel(), 6 * np.arange(len(breaks) + 1))


def _read_bytes(batch: _Bytes) -> Ragged:
    """Make a number of each three bytes in a row; 0 of the two that would reach into the next request."""
    wide = batch.buffer.astype(np.uint64)
    grams = (wide << np.uint64(16)) | (np.roll(wide, -1) << np.uint64(8)) | np.roll(wide, -2)
    grams[batch.starts[1:] - 1] = 0
    grams[batch.starts[1:] - 2] = 0
    return Ragged(grams, batch.starts)


def _read_habits(batch: _Bytes, tokens: _Tokens) -> FloatArray:
    """Measure how the request is written (n, 9)."""
    buffer, size = batch.buffer, np.diff(batch.starts) - 3.0
    marks = _MARKS[buffer]

    def count(hits: NDArray[np.bool_], where: NDArray[np.int64]) -> FloatArray:
        return np.asarray(np.add.reduceat(hits, where, dtype=np.float64))

    whole, some = batch.starts[:-1], np.maximum(size, 1.0)
    return np.column_stack(
        [
            np.minimum(count(buffer == ord("?"), batch.parts).reshape(-1, 2), 2),
            np.log1p(count((buffer == ord(" ")) & np.roll(marks, -1), whole)),
            np.log1p(count(marks, whole)),
            np.sqrt(count(_CAPITALS[buffer], whole) / some),
            np.sqrt(count(_DIGITS[buffer], whole) / some),
            size / np.maximum(tokens.lengths.sum(axis=1), 1),
            marks[batch.breaks - 1],
            marks[batch.starts[1:] - 2],
        ]
    )


def _span_hashes(buffer: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash spans of bytes to 64 bits, the same wherever they stand.

    Polynomial: the difference of two running sums of `byte · base^position` is `base^begin` times the span's hash,
    and arithmetic modulo 2^64 can divide by an odd number.
    """
    powers = np.full(len(buffer), _BASE)
    powers[0] = 1
    np.multiply.accumulate(powers, out=powers)
    sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum((buffer + np.uint64(1)) * powers)])
    inverses = np.full(len(buffer), _INVERSE)
    inverses[0] = 1
    np.multiply.accumulate(inverses, out=inverses)
    hashes = (sums[ends] - sums[begins]) * inverses[begins]
    return (hashes ^ (hashes >> np.uint64(31))) * _ODD


def _starts(lengths: ArrayLike) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])
