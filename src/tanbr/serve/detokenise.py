"""One answer's tokens as pieces of text, each when it can no longer change."""

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
        """Take the next token; the text that is certain now and was not before."""
        self._tokens.append(token)
        if self._stream is None:
            return self._new(self._text())
        try:
            piece = self._stream.step(self._tokenizer.backend_tokenizer, token) or ""
        except Exception:  # the library gives up where a token changes what was said before it
            self._stream = None
            return ""
        self._told += piece
        return piece

    def end(self) -> str:
        """Give what is left: characters of which only a part was written."""
        return self._new(self._text(), whole=True)

    def _new(self, text: str, *, whole: bool = False) -> str:
        if not text.startswith(self._told) or (text.endswith("\ufffd") and not whole):
            return ""
        piece, self._told = text[len(self._told) :], text
        return piece

    def _text(self) -> str:
        text: str = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        return text
