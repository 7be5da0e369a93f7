"""What Python must do per request: tokens in, answers out. The batcher's front thread runs it beside the model."""

import time
from collections.abc import Sequence

import numpy as np

from tanbr.errors import InputError
from tanbr.moe.text import TextEncoder
from tanbr.serve.engine import Live
from tanbr.serve.ids import RequestIds
from tanbr.serve.jobs import Job
from tanbr.serve.messages import Answers, Outbox
from tanbr.serve.prompts import Room
from tanbr.serve.records import Answered, Generated, ServiceError
from tanbr.types import FloatArray


class Front:
    """Reads texts, and tells the learner, then the clients, what was answered."""

    def __init__(
        self, encoder: TextEncoder, ids: RequestIds, *, room: Room, outbox: Outbox, writes: bool, classes: int
    ) -> None:
        self._encoder, self._ids, self._room, self._outbox = encoder, ids, room, outbox
        self._writes, self._classes = writes, classes

    def read(self, jobs: Sequence[Job]) -> dict[Job, InputError]:
        """Turn texts into tokens, all together, or if that fails job by job; the jobs that cannot be read, and why."""
        try:
            self._encode(jobs)
        except Exception as error:  # the tokenizer raises whatever its library does
            if len(jobs) == 1:
                return {
                    jobs[0]: error if isinstance(error, InputError) else InputError(f"a text cannot be read ({error})")
                }
            return {unread: why for job in jobs for unread, why in self.read([job]).items()}
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
        raw = tuple(self._ids.issue(live.slot, len(texts)))
        confidence = best_probability(logits[:, : self._classes])
        self._outbox.put(Answers(live.version, live.slot, time.time(), raw, texts, logits, confidence, None))
        start = 0
        for job in jobs:
            rows = slice(start, start + len(job.texts))
            start = rows.stop
            shown = tuple(self._ids.show(value) for value in raw[rows])
            job.resolve(Answered(shown, logits[rows], live.version, job.cut))

    def wrote(self, job: Job, live: Live) -> None:
        """Answer a job whose prompts were all answered; what the tokenizer has no text for fails it, and no more."""
        rows = [job.written[row] for row in range(len(job.texts))]
        tokens = tuple(row.tokens for row in rows)
        try:
            texts = tuple(self._encoder.tokenizer.batch_decode([list(row) for row in tokens], skip_special_tokens=True))
        except Exception as error:  # the tokenizer raises whatever its library does
            job.fail(ServiceError(f"the model wrote what its tokenizer has no text for ({error})"))
            return
        raw = tuple(self._ids.issue(live.slot, len(rows)))
        confidence = np.array([row.confidence for row in rows])
        self._outbox.put(Answers(live.version, live.slot, time.time(), raw, tuple(job.texts), None, confidence, tokens))
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


def best_probability(logits: FloatArray) -> FloatArray:
    """Probability of the best of the columns (n,)."""
    best: FloatArray = 1.0 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
    return best
