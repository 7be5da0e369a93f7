"""Answers while they are written: pieces of text that can no longer change, up to a string that ends the answer."""

from collections.abc import Callable, Sequence
from typing import Any

from tanbr.serve.decode import Row
from tanbr.serve.jobs import Part
from tanbr.serve.records import ServiceError


class PartRow(Row):
    """The answer to a prompt of a part. It leaves when it has a stop string, or when its client gives up."""

    def __init__(self, part: Part, prompt: int, tokenizer: Any, *, finished: Callable[[Part], None]) -> None:
        """Take a prompt; the last of its part to be answered calls `finished`."""
        job = part.job
        super().__init__(job.limits[prompt], job.sampling[prompt] if job.sampling else None)
        self._part, self._prompt, self._finished = part, prompt, finished
        self._stream = TextStream(tokenizer) if job.on_token is not None or job.stop else None
        self._stops = StopStrings(job.stop)

    @property
    def done(self) -> bool:
        """Whether nothing more is wanted."""
        return super().done or not self._part.wanted

    def add(self, token: int | None) -> None:
        """Take the next token; pass on the text that can no longer change."""
        super().add(token)
        if self._stream is not None and token is not None:
            self._pass_on(self._stops.add(self._stream.add(token)))
        if self._stream is not None and super().done:
            self._pass_on(self._stops.add(self._stream.end(), last=True))
        if self._stops.found:
            self.stopped, self.text = True, self._stops.text
        if super().done:
            written = self._part.written
            written[self._prompt] = self
            if len(written) == len(self._part.rows) and not self._part.left:
                self._finished(self._part)

    def _pass_on(self, piece: str) -> None:
        part, on_token = self._part, self._part.job.on_token
        if piece and part.wanted and on_token is not None:
            try:
                on_token(self._prompt, piece)
                part.streamed = True
            except Exception as error:  # the client's own function
                part.fail(ServiceError(f"the text could not be streamed ({type(error).__name__}: {error})"))


class TextStream:
    """Takes tokens one by one; all pieces together are the text that the tokenizer makes of all tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._told = ""

    def add(self, token: int) -> str:
        """Take the next token; give the text that is certain now and was not before."""
        self._tokens.append(token)
        return self._new()

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
