"""What becomes of the model's output: the learner is told, then the client."""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tanbr.monitor.recogniser import Recognition
from tanbr.serve.ids import RequestIds
from tanbr.serve.jobs import Part
from tanbr.serve.messages import Answers, Outbox
from tanbr.serve.panel import Live
from tanbr.serve.records import ServiceError
from tanbr.types import FloatArray

Reweigh: TypeAlias = Callable[[FloatArray, FloatArray], FloatArray]  # logits (n, columns), posteriors (n, V) → logits


class Replies:
    """Makes answers of logits and tokens. `Answers` is in the outbox before any client of it has its answer."""

    def __init__(
        self, ids: RequestIds, tokenizer: Any, *, outbox: Outbox, classes: int, reweigh: Reweigh | None = None
    ) -> None:
        """Take how many columns are labels, and a function that weighs labels by the text's task, if wanted."""
        self._ids, self._tokenizer, self._outbox = ids, tokenizer, outbox
        self._classes, self._reweigh = classes, reweigh

    def classified(self, parts: Sequence[Part], logits: FloatArray, live: Live) -> None:
        """Answer texts by their logits (n, columns)."""
        if self._reweigh is not None:
            logits = self._reweighed(parts, logits, self._reweigh)
        labels = logits[:, : self._classes]
        best: FloatArray = 1.0 / np.exp(labels - labels.max(axis=1, keepdims=True)).sum(axis=1)  # its probability
        self._tell(parts, live, best, logits, logits=logits)

    def written(self, part: Part, live: Live) -> None:
        """Answer prompts; tokens without a text fail their request alone."""
        rows = [part.written[row] for row in part.rows]
        tokens = tuple(row.tokens for row in rows)
        try:
            whole = self._tokenizer.batch_decode([list(row) for row in tokens], skip_special_tokens=True)
        except Exception as error:  # the tokenizer raises whatever its library does
            part.fail(ServiceError(f"the model wrote what its tokenizer has no text for ({error})"))
            return
        texts = [text if row.text is None else row.text for text, row in zip(whole, rows, strict=True)]
        confidence = np.array([row.confidence for row in rows])
        self._tell([part], live, confidence, list(zip(rows, texts, strict=True)), tokens=tokens)

    def _reweighed(self, parts: Sequence[Part], logits: FloatArray, reweigh: Reweigh) -> FloatArray:
        """Weigh the labels (n, columns) of texts whose tasks are known, or named, by these."""
        weighed, start = logits.copy(), 0
        for part in parts:
            job, rows = part.job, np.asarray(part.rows)
            if job.posteriors is not None and job.seen is not None:
                known = np.flatnonzero(~job.seen.novel[rows] | (job.named is not None))
                weighed[start + known] = reweigh(logits[start + known], job.posteriors[rows[known]])
            start += len(rows)
        return weighed

    def _tell(
        self,
        parts: Sequence[Part],
        live: Live,
        confidence: FloatArray,
        answers: Any,
        *,
        logits: FloatArray | None = None,
        tokens: tuple[tuple[int, ...], ...] | None = None,
    ) -> None:
        """Tell the learner, then give the jobs their answers (n,)."""
        raw = tuple(self._ids.issue(live.slot, len(answers), place=live.place))
        seen = [part.job.seen.rows(part.rows) for part in parts if part.job.seen is not None]
        self._outbox.put(
            Answers(
                live.version,
                live.slot,
                time.time(),
                raw,
                tuple(part.job.texts[row] for part in parts for row in part.rows),
                logits,
                confidence,
                tokens,
                place=live.place,
                seen=Recognition.concatenate(seen) if len(seen) == len(parts) else None,
                named=_named_tasks(parts),
            )
        )
        start = 0
        for part in parts:
            some = slice(start, start := start + len(part.rows))
            part.job.take(part.rows, [self._ids.show(value) for value in raw[some]], live.version, answers[some])


def _named_tasks(parts: Sequence[Part]) -> FloatArray | None:
    """Mark the tasks that clients have named (n, V), all tasks for a client that named none; None if nobody has."""
    named = [part.job.named for part in parts if part.job.named is not None]
    if not named:
        return None
    rows = [np.ones_like(named[0]) if part.job.named is None else part.job.named for part in parts]
    return np.repeat(rows, [len(part.rows) for part in parts], axis=0)
