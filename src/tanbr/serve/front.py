"""What Python must do per request: tokens in, answers out. The batcher's front thread runs it beside the model."""

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from tanbr.errors import InputError
from tanbr.moe.text import TextEncoder
from tanbr.monitor.recogniser import Recognition
from tanbr.serve.ids import RequestIds
from tanbr.serve.jobs import Job
from tanbr.serve.lineup import Lineup, Live
from tanbr.serve.messages import Answers, Outbox
from tanbr.serve.prompts import Room
from tanbr.serve.records import Answered, Generated, ServiceError
from tanbr.types import FloatArray, Text

Repair: TypeAlias = Callable[[FloatArray, FloatArray], FloatArray]  # logits (n, columns), posteriors (n, V) → logits


class Front:
    """Reads texts, and tells the learner, then the clients, what was answered."""

    def __init__(
        self,
        encoder: TextEncoder,
        ids: RequestIds,
        *,
        room: Room,
        outbox: Outbox,
        writes: bool,
        classes: int,
        repair: Repair | None = None,
    ) -> None:
        """Answer in the words of the likeliest tasks if there is a way to `repair` logits."""
        self._encoder, self._ids, self._room, self._outbox = encoder, ids, room, outbox
        self._writes, self._classes, self._repair = writes, classes, repair

    def read(self, jobs: Sequence[Job], lineup: Lineup) -> dict[Job, InputError]:
        """Turn texts into tokens, all together, or if that fails job by job; the jobs that cannot be read, and why.

        Where the lineup is a panel, their tasks are recognised as well.
        """
        try:
            self._encode(jobs)
            if lineup.assignment is not None:
                seen = lineup.assignment.recognise([text for job in jobs for text in job.texts])
                ends = np.cumsum([len(job.texts) for job in jobs]).tolist()
                for job, end in zip(jobs, ends, strict=True):
                    job.seen = seen.rows(slice(end - len(job.texts), end))
        except Exception as error:  # the tokenizer raises whatever its library does
            if len(jobs) == 1:
                return {
                    jobs[0]: error if isinstance(error, InputError) else InputError(f"a text cannot be read ({error})")
                }
            return {unread: why for job in jobs for unread, why in self.read([job], lineup).items()}
        return {}

    def _encode(self, jobs: Sequence[Job]) -> None:
        if self._writes:
            for job in jobs:
                fitted = self._room.fit(job.texts, job.max_tokens, self._encoder)
                job.columns, job.cut, job.limits = fitted.columns, fitted.cut, fitted.limits
            return
        encoded = self._encoder.encode([text for job in jobs for text in job.texts])
        start = 0
        for job in jobs:
            end = start + len(job.texts)
            job.columns = {name: rows[start:end] for name, rows in encoded.columns.items()}
            job.cut = encoded.cut[start:end] if any(encoded.cut[start:end]) else ()
            start = end

    def classified(self, jobs: Sequence[Job], logits: FloatArray, live: Live) -> None:
        """Answer jobs whose texts have logits (n, columns)."""
        texts = tuple(text for job in jobs for text in job.texts)
        raw = tuple(self._ids.issue(live.slot, len(texts), place=live.place))
        if self._repair is not None:
            logits = self._repaired(jobs, logits)
        confidence = best_probability(logits[:, : self._classes])
        self._say(jobs, live, raw, texts, logits, confidence, None)
        start = 0
        for job in jobs:
            rows = slice(start, start + len(job.texts))
            start = rows.stop
            shown = tuple(self._ids.show(value) for value in raw[rows])
            job.resolve(Answered(shown, logits[rows], live.version, job.cut))

    def _repaired(self, jobs: Sequence[Job], logits: FloatArray) -> FloatArray:
        """Weigh the labels (n, columns) of texts whose tasks are known, or named, by these."""
        repaired, start = logits.copy(), 0
        for job in jobs:
            if self._repair is not None and job.posteriors is not None and job.seen is not None:
                known = ~job.seen.novel if job.named is None else np.ones(len(job.texts), dtype=np.bool_)
                rows = start + np.flatnonzero(known)
                repaired[rows] = self._repair(logits[rows], job.posteriors[known])
            start += len(job.texts)
        return repaired

    def _say(
        self,
        jobs: Sequence[Job],
        live: Live,
        ids: tuple[bytes, ...],
        texts: tuple[Text, ...],
        logits: FloatArray | None,
        confidence: FloatArray,
        tokens: tuple[tuple[int, ...], ...] | None,
    ) -> None:
        """Tell the learner."""
        seen = [job.seen for job in jobs if job.seen is not None]
        self._outbox.put(
            Answers(
                live.version,
                live.slot,
                time.time(),
                ids,
                texts,
                logits,
                confidence,
                tokens,
                place=live.place,
                seen=Recognition.concatenate(seen) if len(seen) == len(jobs) else None,
                named=named_tasks(jobs),
            )
        )

    def wrote(self, job: Job, live: Live) -> None:
        """Answer a job whose prompts were all answered; what the tokenizer has no text for fails it, and no more."""
        rows = [job.written[row] for row in range(len(job.texts))]
        tokens = tuple(row.tokens for row in rows)
        try:
            texts = tuple(self._encoder.tokenizer.batch_decode([list(row) for row in tokens], skip_special_tokens=True))
            texts = tuple(text if row.text is None else row.text for text, row in zip(texts, rows, strict=True))
        except Exception as error:  # the tokenizer raises whatever its library does
            job.fail(ServiceError(f"the model wrote what its tokenizer has no text for ({error})"))
            return
        raw = tuple(self._ids.issue(live.slot, len(rows), place=live.place))
        confidence = np.array([row.confidence for row in rows])
        self._say([job], live, raw, tuple(job.texts), None, confidence, tokens)
        answer = Generated(
            request_ids=tuple(self._ids.show(value) for value in raw),
            texts=texts,
            prompt_tokens=tuple(len(row) for row in job.columns["input_ids"]),
            completion_tokens=tuple(len(row) for row in tokens),
            finish_reasons=tuple("stop" if row.stopped else "length" for row in rows),
            merge_version=live.version,
            cut=job.cut,
        )
        job.resolve(answer)


def named_tasks(jobs: Sequence[Job]) -> FloatArray | None:
    """The tasks that clients have named (n, V), all for those who have not; None if nobody has."""
    named = [job.named for job in jobs if job.named is not None]
    if not named:
        return None
    every = np.ones_like(named[0])
    return np.concatenate([np.tile(every if job.named is None else job.named, (len(job.texts), 1)) for job in jobs])


def best_probability(logits: FloatArray) -> FloatArray:
    """Probability of the best of the columns (n,)."""
    best: FloatArray = 1.0 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
    return best
