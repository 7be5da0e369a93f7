"""A batch through the model; if its merge version is broken, back to the one before. The batcher's workers run it."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np

from tanbr.moe.text import Inputs, TextEncoder
from tanbr.serve.decode import NotFinite, Step, Written
from tanbr.serve.detokenise import TextStream
from tanbr.serve.engine import Engine
from tanbr.serve.front import Front
from tanbr.serve.jobs import Job
from tanbr.serve.lineup import Lineup, Live
from tanbr.serve.messages import Broken, Outbox
from tanbr.serve.padding import like_lengths
from tanbr.serve.records import Observer, ServiceError
from tanbr.serve.sampling import Sampling
from tanbr.serve.stop_strings import StopStrings


class ModelRuns:
    """Answers batches; what is left to do for a job is handed over to the front thread."""

    def __init__(
        self,
        engine: Engine,
        encoder: TextEncoder,
        front: Front,
        *,
        batch: int,
        hand_over: Callable[[list[Job], Callable[[], None]], None],
        put_back: Callable[[list[Job]], None],
        take_more: Callable[[Lineup, int, int], list[Job]],
        outbox: Outbox,
        observer: Observer,
    ) -> None:
        self._engine, self._encoder, self._front = engine, encoder, front
        self._batch, self._outbox, self._observer = batch, outbox, observer
        self._hand_over, self._put_back, self._take_more = hand_over, put_back, take_more

    def answer(self, jobs: list[Job], lineup: Lineup) -> int:
        """Answer jobs of one model together, or if that fails one by one; how many texts were answered at once.

        To a model that writes, jobs that come meanwhile are added.
        """
        try:
            return self._answer(jobs, lineup)
        except Exception as error:  # whatever the model raises must not end the thread
            others = [job for job in jobs if not job.left]
            again = [job for job in others if len(jobs) > 1 and not job.streamed]  # nobody hears a piece twice
            said = f"{type(error).__name__}: {error}"
            failed = [job for job in others if job not in again]
            for job in failed:
                job.left = True
                job.fail(error if isinstance(error, ServiceError) else ServiceError(f"the model failed ({said})"))
            if failed or not again:
                self._observer.alarm(f"a batch failed: {said}")
            return sum(self.answer([job], lineup) for job in again)

    def _answer(self, jobs: list[Job], lineup: Lineup) -> int:
        jobs[:] = [job for job in jobs if job.wanted]
        if not jobs:
            return 0
        with self._engine.using(lineup, jobs[0].place) as live:
            try:
                if self._engine.writes:
                    self._write(jobs, live, lineup)
                else:
                    self._classify(jobs, live)
                return sum(len(job.texts) for job in jobs)
            except NotFinite:
                pass
        self._outbox.put(Broken(live.version, live.slot))
        if not self._engine.revert(live):
            raise ServiceError(f"merge version {live.version} answers with NaN and no other is at hand")
        for job in jobs:
            if job.streamed and not job.left:
                job.left = True
                job.fail(ServiceError(f"merge version {live.version} broke off with NaN; send the prompt again"))
        self._put_back([job for job in jobs if job.wanted])  # for those that answer now
        return 0

    def _classify(self, jobs: Sequence[Job], live: Live) -> None:
        """Answer all texts, those of like length together."""
        rows = {name: [row for job in jobs for row in job.columns[name]] for name in jobs[0].columns}
        lengths = [len(row) for row in rows["input_ids"]]
        logits = np.empty((len(lengths), len(self._engine.columns)))
        for group in like_lengths(lengths, most=self._batch):
            part = {name: [values[i] for i in group] for name, values in rows.items()}
            logits[group] = live.backend.classify(self._encoder.pad(part))
        if not np.isfinite(logits).all():
            raise NotFinite
        for job in jobs:
            job.left = True
        self._hand_over(list(jobs), partial(self._front.classified, jobs, logits, live))

    def _write(self, jobs: list[Job], live: Live, lineup: Lineup) -> None:
        """Decode all prompts together. A job leaves when its last prompt has, or when its client gives up.

        Others join as long as this version is what answers.
        """
        places: list[_Row] = []

        def begin(some: Sequence[Job]) -> tuple[Inputs, list[int], list[Sampling | None]]:
            for job in some:
                job.written = {}
                places.extend(_Row(job, prompt, self._encoder.tokenizer) for prompt in range(len(job.texts)))
            rows = {name: [row for job in some for row in job.columns[name]] for name in some[0].columns}
            limits = [limit for job in some for limit in job.limits]
            sampling = [one for job in some for one in job.sampling or [None] * len(job.texts)]
            return self._encoder.pad(rows, left=live.backend.causal), limits, sampling

        def more(at_work: int) -> tuple[Inputs, list[int], list[Sampling | None]] | None:
            came = self._take_more(lineup, jobs[0].place, self._batch - at_work)
            jobs.extend(came)
            return begin(came) if came else None

        def ended(row: _Row, written: Written) -> None:
            job = row.job
            job.written[row.prompt] = written
            if len(job.written) == len(job.texts) and not job.left:
                job.left = True
                self._hand_over([job], partial(self._front.wrote, job, live))

        def on_step(step: Step) -> Collection[int]:
            for number, token in step.added.items():
                row = places[number]
                row.add(token, step.chances[number])
                if row.stopped and number not in step.ended:
                    ended(row, row.cut())
            for number, written in step.ended.items():
                row = places[number]
                row.end()
                ended(row, row.cut() if row.stopped else written)
            return [number for number, row in enumerate(places) if row.stopped or not row.job.wanted]

        inputs, limits, sampling = begin(jobs)
        live.backend.generate(inputs, limits=limits, on_step=on_step, more=more, sampling=sampling)


class _Row:
    """One answer that is being written: its text, where that matters before the end."""

    def __init__(self, job: Job, prompt: int, tokenizer: Any) -> None:
        self.job, self.prompt = job, prompt
        heard = job.on_token is not None or job.stop
        self._stream = TextStream(tokenizer) if heard else None
        self._stops = StopStrings(job.stop)
        self._tokens: list[int] = []
        self._chances = 0.0

    @property
    def stopped(self) -> bool:
        """Whether one of the strings that end it was written."""
        return self._stops.found

    def add(self, token: int, chance: float) -> None:
        """Hear a token, and its probability."""
        if self._stream is not None and not self.stopped:
            self._tokens.append(token)
            self._chances += chance
            self._tell(self._stops.add(self._stream.add(token)))

    def end(self) -> None:
        """Hear that there is no more."""
        if self._stream is not None and not self.stopped:
            self._tell(self._stops.add(self._stream.end(), last=True))

    def cut(self) -> Written:
        """Give what was written up to the string that ended it, and what of it is told."""
        tokens = tuple(self._tokens)
        return Written(tokens, True, self._chances / len(tokens), self._stops.text)

    def _tell(self, piece: str) -> None:
        job = self.job
        if piece and job.wanted and job.on_token is not None:
            try:
                job.on_token(self.prompt, piece)
                job.streamed = True
            except Exception as error:  # the client's own function
                job.left = True
                job.fail(ServiceError(f"the text could not be streamed ({type(error).__name__}: {error})"))
