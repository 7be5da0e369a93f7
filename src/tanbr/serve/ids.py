"""Request ids that only this server can have issued, and that say which slot answered.

An id is the slot (4 bytes), the model's place in it (1), 7 random bytes and a keyed hash of all and of the *epoch*, a
random name that a server takes at every start. So feedback needs no look-up, and a server that is restored from a
backup does not know ids that were issued after it.
"""

import hmac
import os
from base64 import b32decode, b32encode
from binascii import Error
from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeAlias

KEY_BYTES, EPOCH_BYTES = 32, 8
MOST_EPOCHS = 256  # of which ids are still known
_RANDOM, _MAC = 7, 8
_HEAD = 5  # bytes before the random ones


Epoch: TypeAlias = tuple[bytes, int]  # one life of a server: its name, and the slot that was open when it began


class RequestIds:
    """Issues and recognises ids with one secret key."""

    def __init__(self, key: bytes, epochs: Sequence[Epoch] = ((b"", 0),)) -> None:
        self._key = key
        ends = [first for _, first in epochs[1:]] + [1 << 62]  # an epoch ends with the slot that the next began with
        self._epochs = [(*epoch, end) for epoch, end in zip(epochs, ends, strict=True)][::-1]

    def take_over(self, other: "RequestIds") -> None:
        """Issue and recognise ids as another does: a replica's learner was started again."""
        self._key, self._epochs = other._key, other._epochs

    def issue(self, slot: int, count: int, *, place: int = 0) -> list[bytes]:
        """Make ids for requests answered in a slot by one of its models; raw, as the store keeps them (12 bytes)."""
        head, random = slot.to_bytes(4, "big") + bytes([place]), os.urandom(_RANDOM * count)
        return [head + random[start : start + _RANDOM] for start in range(0, len(random), _RANDOM)]

    def show(self, raw: bytes) -> str:
        """Write an id as clients see it: 32 letters and digits."""
        return b32encode(raw + self._mac(raw, self._epochs[0][0])).decode().lower()

    def read(self, shown: str) -> bytes | None:
        """Turn a client's id back; None if this server did not issue it, or not for one of its slots."""
        try:
            value = b32decode(shown.upper()) if len(shown) == 32 else b""
        except (Error, ValueError):
            return None
        raw, mac = value[:-_MAC], value[-_MAC:]
        if len(raw) != _HEAD + _RANDOM:
            return None
        slot = slot_of(raw)
        names = [name for name, first, last in self._epochs if first <= slot <= last]
        return raw if any(hmac.compare_digest(mac, self._mac(raw, name)) for name in names) else None

    def _mac(self, raw: bytes, epoch: bytes) -> bytes:
        return blake2b(raw, key=self._key, person=epoch, digest_size=_MAC).digest()


def slot_of(raw: bytes) -> int:
    """The slot whose blend answered a request."""
    return int.from_bytes(raw[:4], "big")


def place_of(raw: bytes) -> int:
    """The model, of those of its slot, that answered a request."""
    return raw[4]
