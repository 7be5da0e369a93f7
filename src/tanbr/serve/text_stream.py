"""An answer as text while it is written: pieces that can no longer change, up to a string that ends the answer."""

from collections.abc import Sequence
from typing import Any

from tokenizers.decoders import DecodeStream


class TextStream:
    """Takes tokens one by one; all pieces together are the text that the tokenizer makes of all tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._told = ""
        plain = tokenizer.is_fast and not tokenizer.clean_up_tokenization_spaces  # nothing is changed after decoding
        self._stream: DecodeStream | None = DecodeStream(skip_special_tokens=True) if plain else None

    def add(self, token: int) -> str:
        """Take the next token; give the text that is certain now and was not before."""
        self._tokens.append(token)
        if self._stream is None:
            return self._new()
        try:
            piece = self._stream.step(self._tokenizer.backend_tokenizer, token) or ""
        except Exception:  # the library gives up where a token changes the text before it
            self._stream = None
            return ""
        self._told += piece
        return piece

    def end(self) -> str:
        """Give what is left: characters of which only a part was written."""
        return self._new(whole=True)

    def _new(self, *, whole: bool = False) -> str:
        text: str = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        if not text.startswith(self._told) or (text.endswith("\ufffd") and not whole):
            return ""
        piece, self._told = text[len(self._told) :], text
        return piece


class StopStrings:
    """Passes on an answer's text up to the first stop string; keeps back what may be the beginning of one."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""  # the end of the text so far, with which a stop string may begin
        self.text = ""  # all that was passed on
        self.found = False

    def add(self, piece: str, *, last: bool = False) -> str:
        """Take a piece, perhaps the last; give what can be passed on now."""
        if self.found:
            return ""
        text = self._held + piece
        found = [(place + len(stop), place) for stop in self._stop if (place := text.find(stop)) >= 0]
        self.found = bool(found)
        # of several stop strings, the one that is complete first counts
        certain = min(found)[1] if found else len(text) - (0 if last else self._beginning(text))
        self._held = text[certain:]
        self.text += text[:certain]
        return text[:certain]

    def _beginning(self, text: str) -> int:
        """Length of the longest end of a text that is a beginning of a stop string."""
        lengths = range(min(len(text), max(map(len, self._stop), default=1) - 1), 0, -1)
        return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stop)), 0)
