"""What becomes of the model's output: the learner is told, then the client."""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tanbr.monitor.recogniser import Recognition
from tanbr.serve.ids import RequestIds
from tanbr.serve.jobs import Job, count
from tanbr.serve.messages import Answers, Outbox
from tanbr.serve.panel import Live
from tanbr.serve.records import Answered, Generated, ServiceError
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

    def classified(self, jobs: Sequence[Job], logits: FloatArray, live: Live) -> None:
        """Answer jobs whose texts have logits (n, columns)."""
        if self._reweigh is not None:
            logits = self._reweighed(jobs, logits, self._reweigh)
        labels = logits[:, : self._classes]
        best: FloatArray = 1.0 / np.exp(labels - labels.max(axis=1, keepdims=True)).sum(axis=1)  # its probability
        shown = self._tell(jobs, live, best, logits=logits)
        start = 0
        for job in jobs:
            rows = slice(start, start + len(job.texts))
            start = rows.stop
            job.resolve(Answered(shown[rows], logits[rows], live.version, job.cut))

    def written(self, job: Job, live: Live) -> None:
        """Answer a job whose prompts were all answered; tokens without a text fail this job alone."""
        rows = [job.written[row] for row in range(len(job.texts))]
        tokens = tuple(row.tokens for row in rows)
        try:
            texts = self._tokenizer.batch_decode([list(row) for row in tokens], skip_special_tokens=True)
        except Exception as error:  # the tokenizer raises whatever its library does
            job.fail(ServiceError(f"the model wrote what its tokenizer has no text for ({error})"))
            return
        shown = self._tell([job], live, np.array([row.confidence for row in rows]), tokens=tokens)
        job.resolve(
            Generated(
                request_ids=shown,
                texts=tuple(text if row.text is None else row.text for text, row in zip(texts, rows, strict=True)),
                prompt_tokens=tuple(len(row) for row in job.columns["input_ids"]),
                completion_tokens=tuple(len(row) for row in tokens),
                finish_reasons=tuple("stop" if row.stopped else "length" for row in rows),
                merge_version=live.version,
                cut=job.cut,
            )
        )

    def _reweighed(self, jobs: Sequence[Job], logits: FloatArray, reweigh: Reweigh) -> FloatArray:
        """Weigh the labels (n, columns) of texts whose tasks are known, or named, by these."""
        weighed, start = logits.copy(), 0
        for job in jobs:
            if job.posteriors is not None and job.seen is not None:
                known = ~job.seen.novel if job.named is None else np.ones(len(job.texts), dtype=np.bool_)
                rows = start + np.flatnonzero(known)
                weighed[rows] = reweigh(logits[rows], job.posteriors[known])
            start += len(job.texts)
        return weighed

    def _tell(
        self,
        jobs: Sequence[Job],
        live: Live,
        confidence: FloatArray,
        *,
        logits: FloatArray | None = None,
        tokens: tuple[tuple[int, ...], ...] | None = None,
    ) -> tuple[str, ...]:
        """Tell the learner; the request ids (n,) as clients see them."""
        raw = tuple(self._ids.issue(live.slot, count(jobs), place=live.place))
        seen = [job.seen for job in jobs if job.seen is not None]
        self._outbox.put(
            Answers(
                live.version,
                live.slot,
                time.time(),
                raw,
                tuple(text for job in jobs for text in job.texts),
                logits,
                confidence,
                tokens,
                place=live.place,
                seen=Recognition.concatenate(seen) if len(seen) == len(jobs) else None,
                named=_named_tasks(jobs),
            )
        )
        return tuple(self._ids.show(value) for value in raw)


def _named_tasks(jobs: Sequence[Job]) -> FloatArray | None:
    """Mark the tasks that clients have named (n, V), all tasks for a client that named none; None if nobody has."""
    named = [job.named for job in jobs if job.named is not None]
    if not named:
        return None
    every = np.ones_like(named[0])
    return np.concatenate([np.tile(every if job.named is None else job.named, (len(job.texts), 1)) for job in jobs])
