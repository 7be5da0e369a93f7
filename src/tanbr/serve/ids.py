"""Request ids that only this server can have issued, and that say which slot answered.

An id is the slot (4 bytes), 8 random bytes and a keyed hash of both: it needs no look-up to be trusted, so feedback is
taken even for a request whose row was lost when the process was killed.
"""

import hmac
import os
from base64 import b32decode, b32encode
from binascii import Error
from hashlib import blake2b

KEY_BYTES = 32
_RANDOM, _MAC = 8, 8


class RequestIds:
    """Issues and recognises ids with one secret key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(self, slot: int, count: int) -> list[bytes]:
        """Make ids for requests answered in a slot; raw, as the store keeps them (12 bytes)."""
        head, random = slot.to_bytes(4, "big"), os.urandom(_RANDOM * count)
        return [head + random[start : start + _RANDOM] for start in range(0, len(random), _RANDOM)]

    def show(self, raw: bytes) -> str:
        """Write an id as clients see it: 32 letters and digits."""
        return b32encode(raw + self._mac(raw)).decode().lower()

    def read(self, shown: str) -> bytes | None:
        """Turn a client's id back; None if this server did not issue it."""
        try:
            value = b32decode(shown.upper()) if len(shown) == 32 else b""
        except (Error, ValueError):
            return None
        raw, mac = value[:-_MAC], value[-_MAC:]
        return raw if len(raw) == 4 + _RANDOM and hmac.compare_digest(mac, self._mac(raw)) else None

    def _mac(self, raw: bytes) -> bytes:
        return blake2b(raw, key=self._key, digest_size=_MAC).digest()


def slot_of(raw: bytes) -> int:
    """The slot whose blend answered a request."""
    return int.from_bytes(raw[:4], "big")
