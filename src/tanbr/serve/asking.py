"""Questions to a model outside the batches: what guards, measurements and tests ask of what answers or is about to."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np

from tanbr.moe.text import Inputs, TextEncoder
from tanbr.serve.backends import Backend
from tanbr.serve.decode import NotFinite
from tanbr.serve.lineup import Live, Staged
from tanbr.types import FloatArray, Text


class Asking(ABC):
    """Asks whatever `holding` holds."""

    def __init__(self, encode: TextEncoder, *, batch: int, left: bool) -> None:
        """Pad on the left where models go on from their prompts."""
        self.encode, self._batch, self._left = encode, batch, left

    @abstractmethod
    def holding(self, live: Live | Staged | None) -> AbstractContextManager[Backend]:
        """Hold a model, by default the first that answers now."""

    def logits(self, texts: Sequence[Text], *, live: Live | Staged | None = None) -> FloatArray:
        """Classify texts: (n, columns), by default with what answers now.

        Texts of like length share a batch, so that little is padding.
        """
        with self.holding(live) as backend:
            logits = np.empty((len(texts), len(backend.columns)))
            for chunk in self._chunks(texts):
                logits[chunk] = backend.classify(self.padded([texts[i] for i in chunk])[0])
        return logits

    def texts(self, prompts: Sequence[Text], *, max_tokens: int, live: Live | Staged | None = None) -> list[str]:
        """Write an answer of at most `max_tokens` tokens to each prompt, by default with what answers now."""
        written = [""] * len(prompts)
        with self.holding(live) as backend:
            for chunk in self._chunks(prompts):
                inputs = self.padded([prompts[i] for i in chunk])[0]
                done = backend.generate(inputs, limits=[max_tokens] * len(chunk), on_step=lambda _: ())
                for i, answer in zip(chunk, done, strict=True):
                    tokens = () if answer is None else answer.tokens
                    written[i] = str(self.encode.tokenizer.decode(list(tokens), skip_special_tokens=True))
        return written

    def sane(self, text: Text, live: Live | Staged) -> bool:
        """Whether a model answers a text with numbers, be it a label or the first token of an answer."""
        with self.holding(live) as backend:
            inputs = self.padded([text])[0]
            if not backend.writes:
                return bool(np.isfinite(backend.classify(inputs)).all())
            try:
                backend.generate(inputs, limits=[1], on_step=lambda _: ())
            except NotFinite:
                return False
            return True

    def _chunks(self, texts: Sequence[Text]) -> list[list[int]]:
        order = sorted(range(len(texts)), key=lambda i: len("".join(texts[i])))
        return [order[start : start + self._batch] for start in range(0, len(order), self._batch)]

    def padded(self, texts: Sequence[Text]) -> list[Inputs]:
        """Encode texts in the order given, a batch at a time."""
        parts = [texts[start : start + self._batch] for start in range(0, len(texts), self._batch)]
        return [self.encode.pad(self.encode.encode(part).columns, left=self._left) for part in parts]
