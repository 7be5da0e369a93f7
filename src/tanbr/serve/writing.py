"""Answers while they are written: pieces of text that can no longer change, up to a string that ends the answer."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from tanbr.serve.decode import Step, Written
from tanbr.serve.jobs import Part
from tanbr.serve.records import ServiceError


class WrittenBatch:
    """Prompts that a model answers together. A part leaves when its last prompt has, or when its client gives up."""

    def __init__(self, parts: Sequence[Part], tokenizer: Any, *, finished: Callable[[Part], None]) -> None:
        """Take in prompts; call `finished` with each part whose prompts are all answered."""
        for part in parts:
            part.written = {}
        self._finished = finished
        self._rows = [_Row(part, row, tokenizer) for part in parts for row in part.rows]
        self.limits = [part.job.limits[row] for part in parts for row in part.rows]
        self.sampling = [part.job.sampling[row] if part.job.sampling else None for part in parts for row in part.rows]

    def on_step(self, step: Step) -> Collection[int]:
        """Take the tokens of a step; the rows of which nothing more is wanted."""
        for number, token in step.added.items():
            row = self._rows[number]
            row.add(token)
            if row.stopped and number not in step.ended:
                self._end(row, row.cut())
        for number, written in step.ended.items():
            row = self._rows[number]
            row.end()
            self._end(row, row.cut() if row.stopped else written)
        return [number for number, row in enumerate(self._rows) if row.stopped or not row.part.wanted]

    def _end(self, row: "_Row", written: Written) -> None:
        part = row.part
        part.written[row.prompt] = written
        if len(part.written) == len(part.rows) and not part.left:
            self._finished(part)


class _Row:
    """One answer that is being written: its text, where that matters before the end."""

    def __init__(self, part: Part, prompt: int, tokenizer: Any) -> None:
        self.part, self.prompt = part, prompt
        self._stream = TextStream(tokenizer) if part.job.on_token is not None or part.job.stop else None
        self._stops = StopStrings(part.job.stop)
        self._tokens: list[int] = []

    @property
    def stopped(self) -> bool:
        """Whether a stop string was written."""
        return self._stops.found

    def add(self, token: int) -> None:
        """Take a token."""
        if self._stream is not None and not self.stopped:
            self._tokens.append(token)
            self._pass_on(self._stops.add(self._stream.add(token)))

    def end(self) -> None:
        """Pass on what was kept back: there are no more tokens."""
        if self._stream is not None and not self.stopped:
            self._pass_on(self._stops.add(self._stream.end(), last=True))

    def cut(self) -> Written:
        """Give what was written up to the stop string, and what of it the client gets."""
        return Written(tuple(self._tokens), True, self._stops.text)

    def _pass_on(self, piece: str) -> None:
        part, on_token = self.part, self.part.job.on_token
        if piece and part.wanted and on_token is not None:
            try:
                on_token(self.prompt, piece)
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
