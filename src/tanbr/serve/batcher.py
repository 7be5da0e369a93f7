"""Dynamic batches, by two threads.

The front thread does what Python must do per request (tokens in, answers out); the model thread runs the model and
little else. So the one overlaps the other. Whatever fails for one request fails that request alone; a thread that dies
all the same takes its requests with it, and `faults` says so.
"""

import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from tanbr.errors import InputError
from tanbr.moe.text import Columns
from tanbr.serve.decode import NotFinite, Step, Written
from tanbr.serve.detokenise import TextStream
from tanbr.serve.engine import Engine, Live
from tanbr.serve.ids import RequestIds
from tanbr.serve.messages import Answers, Broken, Outbox
from tanbr.serve.prompts import Room
from tanbr.serve.records import Answered, Generated, Observer, OnToken, Overloaded, ServiceError, Stopping
from tanbr.types import FloatArray, Text


@dataclass(eq=False)
class Job:
    """The texts of one request, on their way."""

    texts: Sequence[Text]
    future: "Future[Any]"
    max_tokens: int | None = None  # to write for each prompt; None: as many as there is room for
    on_token: OnToken | None = None
    columns: Columns = field(default_factory=dict)
    cut: tuple[int, ...] = ()
    limits: tuple[int, ...] = ()  # tokens to write for each prompt
    written: dict[int, Written] = field(default_factory=dict)  # prompt → what was written for it
    streamed: bool = False  # whether its client has seen a part of an answer
    left: bool = False  # whether the model thread has no more to do with it


class Batcher:
    """Queue, batches and answers."""

    def __init__(
        self,
        engine: Engine,
        ids: RequestIds,
        *,
        batch: int,
        wait: float,
        queue: int,
        threads: int | None,
        classes: int,
        room: Room,
        outbox: Outbox,
        observer: Observer,
    ) -> None:
        self._engine, self._ids, self._observer, self._outbox = engine, ids, observer, outbox
        self._batch, self._wait, self._queue, self._threads = batch, wait, queue, threads
        self._classes, self._room = classes, room
        self._encoder = copy.deepcopy(engine.encode)  # a tokenizer remembers how to cut: one for each thread
        self._causal = engine.live.backend.causal
        self._lock = threading.Lock()
        self._front_wakes, self._model_wakes = threading.Condition(self._lock), threading.Condition(self._lock)
        self._incoming: list[Job] = []
        self._encoded: deque[Job] = deque()
        self._done: list[tuple[list[Job], Callable[[], None]]] = []  # answered jobs, and what tells their answers
        self._waiting = 0  # texts accepted and not yet in a batch
        self._running = False
        self._model_ended = False
        self._faults: list[str] = []
        self._unanswered: set[Future[Any]] = set()  # of all jobs that were accepted
        self._rate = 0.0  # texts per second while busy, smoothed
        self._worker_threads = [
            threading.Thread(target=self._watched, args=(run,), name=name, daemon=True)
            for name, run in (("tanbr-front", self._front), ("tanbr-model", self._model))
        ]

    @property
    def depth(self) -> int:
        """Texts that wait."""
        return self._waiting

    def faults(self) -> tuple[str, ...]:
        """Say which threads have died, and of what; nothing if all is well."""
        return tuple(self._faults)

    def start(self) -> None:
        """Take requests."""
        self._running = True
        for thread in self._worker_threads:
            thread.start()

    def stop(self, timeout: float) -> bool:
        """Refuse new requests and answer those accepted; whether that was done in time."""
        with self._lock:
            self._running = False
            self._front_wakes.notify()
            self._model_wakes.notify()
        ends = time.monotonic() + timeout
        for thread in self._worker_threads:
            if thread.ident is not None:
                thread.join(max(0.0, ends - time.monotonic()))
        return not any(thread.is_alive() for thread in self._worker_threads)

    def submit(self, job: Job) -> None:
        """Queue a job; Overloaded or Stopping instead if it cannot be."""
        if not job.texts:
            raise InputError("at least one text is needed")
        with self._lock:
            if self._faults:
                raise Stopping(f"the server cannot answer any more ({self._faults[0]}); it must be restarted")
            if not self._running:
                raise Stopping("the server is not taking requests; try another, or wait until it is ready again")
            if self._waiting and self._waiting + len(job.texts) > self._queue:
                raise Overloaded(min(60.0, max(0.1, self._waiting / self._rate if self._rate else 1.0)))
            self._waiting += len(job.texts)
            self._unanswered.add(job.future)
            self._incoming.append(job)
            self._front_wakes.notify()
        job.future.add_done_callback(self._unanswered.discard)

    def _watched(self, run: Callable[[], None]) -> None:
        """Run a thread; if it dies, say so and leave no request waiting for it."""
        try:
            run()
        except BaseException as error:  # nobody else would ever hear of it
            fault = f"{threading.current_thread().name} died of {type(error).__name__}: {error}"
            with self._lock:
                self._faults.append(fault)
                self._incoming, self._model_ended, self._running = [], True, False
                self._encoded.clear()
                self._waiting = 0
                self._front_wakes.notify()
                self._model_wakes.notify()
            for future in list(self._unanswered):
                _fail(future, ServiceError(f"the server cannot answer any more: {fault}"))
            self._observer.alarm(fault)

    # --- front thread ---------------------------------------------------------------------------------------------

    def _front(self) -> None:
        while True:
            with self._lock:
                self._front_wakes.wait_for(lambda: self._incoming or self._done or not self._running)
                jobs, self._incoming = self._incoming, []
                done, self._done = self._done, []
                if not jobs and not done and self._model_ended:
                    return
                if not jobs and not done:  # stopping: the model thread has yet to finish
                    self._model_wakes.notify()
                    self._front_wakes.wait(0.01)
                    continue
            for answered, tell in done:
                self._tell(answered, tell)
            if jobs:
                self._encode(jobs)

    def _tell(self, jobs: list[Job], tell: Callable[[], None]) -> None:
        """Tell answers; what fails then fails these jobs alone."""
        try:
            tell()
        except Exception as error:  # ids, a learner's log: nothing of it may end the thread
            said = f"an answer could not be told ({type(error).__name__}: {error})"
            for job in jobs:
                _fail(job.future, ServiceError(said))
            self._observer.alarm(said)

    def _encode(self, jobs: list[Job]) -> None:
        """Turn texts into tokens, all together, or if that fails job by job: what cannot be read fails its own job."""
        try:
            self._read(jobs)
        except Exception as error:  # the tokenizer raises whatever its library does
            if len(jobs) > 1:
                for job in jobs:
                    self._encode([job])
                return
            with self._lock:
                self._waiting -= len(jobs[0].texts)
            _fail(
                jobs[0].future,
                error if isinstance(error, InputError) else InputError(f"a text cannot be read ({error})"),
            )
            return
        with self._lock:
            self._encoded.extend(jobs)
            self._model_wakes.notify()

    def _read(self, jobs: list[Job]) -> None:
        if not self._classes:
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

    def _hand_over(self, jobs: list[Job], tell: Callable[[], None]) -> None:
        with self._lock:
            self._done.append((jobs, tell))
            self._front_wakes.notify()

    def _classified(self, jobs: list[Job], logits: FloatArray, confidence: FloatArray, live: Live) -> None:
        """Tell the learner, then the clients."""
        texts = tuple(text for job in jobs for text in job.texts)
        raw = tuple(self._ids.issue(live.slot, len(texts)))
        self._outbox.put(Answers(live.version, live.slot, time.time(), raw, texts, logits, confidence, None))
        start = 0
        for job in jobs:
            rows = slice(start, start + len(job.texts))
            start = rows.stop
            shown = tuple(self._ids.show(value) for value in raw[rows])
            _resolve(job, Answered(shown, logits[rows], live.version, job.cut))

    def _wrote(self, job: Job, live: Live) -> None:
        """Tell the learner, then the client; what the tokenizer has no text for fails the job, and nobody is told."""
        rows = [job.written[row] for row in range(len(job.texts))]
        tokens = tuple(row.tokens for row in rows)
        try:
            texts = tuple(self._encoder.tokenizer.batch_decode([list(row) for row in tokens], skip_special_tokens=True))
        except Exception as error:  # the tokenizer raises whatever its library does
            _fail(job.future, ServiceError(f"the model wrote what its tokenizer has no text for ({error})"))
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
        _resolve(job, answer)

    # --- model thread ---------------------------------------------------------------------------------------------

    def _model(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        while jobs := self._take():
            self._answer_apart(jobs)
        with self._lock:
            self._model_ended = True
            self._front_wakes.notify()

    def _take(self) -> list[Job]:
        """Wait for jobs that make up a batch; none when all is done and the service stops."""
        with self._lock:
            while not self._encoded:
                if self._faults or (not self._running and not self._waiting):
                    return []
                self._model_wakes.wait(None if self._running else 0.01)
            if self._wait and self._running:
                ends = time.monotonic() + self._wait
                while sum(len(job.texts) for job in self._encoded) < self._batch and self._running:
                    if not self._model_wakes.wait(ends - time.monotonic()):
                        break
            jobs = [self._encoded.popleft()]
            size = len(jobs[0].texts)
            while self._encoded and size + len(self._encoded[0].texts) <= self._batch:
                jobs.append(self._encoded.popleft())
                size += len(jobs[-1].texts)
            self._waiting -= size
            depth = self._waiting
        self._observer.queue(depth)
        return jobs

    def _answer_apart(self, jobs: list[Job]) -> None:
        """Answer jobs together, or if that fails one by one: what the model cannot answer fails its own job."""
        try:
            self._answer(jobs)
        except Exception as error:  # whatever the model raises must not end the thread
            others = [job for job in jobs if not job.left]
            if len(jobs) > 1:
                for job in others:
                    self._answer_apart([job])
                return
            failed = error if isinstance(error, ServiceError) else None
            for job in others:
                _fail(job.future, failed or ServiceError(f"the model failed ({type(error).__name__}: {error})"))
            self._observer.alarm(f"a batch failed: {type(error).__name__}: {error}")

    def _answer(self, jobs: list[Job]) -> None:
        started = time.perf_counter()
        run = self._classify if self._classes else self._write
        while jobs := [job for job in jobs if not job.left and not _gave_up(job)]:
            size = sum(len(job.texts) for job in jobs)
            with self._engine.using() as live:
                try:
                    run(jobs, live)
                    break
                except NotFinite:
                    pass
            self._outbox.put(Broken(live.version, live.slot))
            now = self._engine.revert(live)
            if now is None or now is live:
                raise ServiceError(f"merge version {live.version} answers with NaN and no other is at hand")
            for job in jobs:
                if job.streamed and not job.left:
                    job.left = True
                    _fail(
                        job.future,
                        ServiceError(f"merge version {live.version} broke off with NaN; send the prompt again"),
                    )
        else:
            return
        took = time.perf_counter() - started
        self._rate = 0.8 * self._rate + 0.2 * size / took if self._rate else size / took
        self._observer.batch(size, took)

    def _classify(self, jobs: list[Job], live: Live) -> None:
        """Answer all texts together, or if they are more than a batch those of like length."""
        rows = {name: [row for job in jobs for row in job.columns[name]] for name in jobs[0].columns}
        lengths = [len(row) for row in rows["input_ids"]]
        order = sorted(range(len(lengths)), key=lengths.__getitem__) if len(lengths) > self._batch else None
        if order is None:
            logits = live.backend.classify(self._encoder.pad(rows))
        else:
            logits = np.empty((len(lengths), len(self._engine.columns)))
            for start in range(0, len(order), self._batch):
                chunk = order[start : start + self._batch]
                part = {name: [values[i] for i in chunk] for name, values in rows.items()}
                logits[chunk] = live.backend.classify(self._encoder.pad(part))
        if not np.isfinite(logits).all():
            raise NotFinite
        for job in jobs:
            job.left = True
        self._hand_over(jobs, partial(self._classified, jobs, logits, _confidence(logits[:, : self._classes]), live))

    def _write(self, jobs: list[Job], live: Live) -> None:
        """Decode all prompts together. A job leaves when its last prompt has, or when its client gives up."""
        places = [(job, prompt) for job in jobs for prompt in range(len(job.texts))]
        streams = {
            row: TextStream(self._encoder.tokenizer) for row, (job, _) in enumerate(places) if job.on_token is not None
        }
        for job in jobs:
            job.written = {}

        def tell(row: int, piece: str) -> None:
            job, prompt = places[row]
            if piece and not job.left and not job.future.cancelled():
                try:
                    job.on_token and job.on_token(prompt, piece)
                    job.streamed = True
                except Exception as error:  # the client's own function
                    job.left = True
                    _fail(job.future, ServiceError(f"the text could not be streamed ({type(error).__name__}: {error})"))

        def on_step(step: Step) -> Collection[int]:
            for row in step.added.keys() & streams.keys():
                tell(row, streams[row].add(step.added[row]))
            for row, written in step.ended.items():
                if row in streams:
                    tell(row, streams[row].end())
                job, prompt = places[row]
                job.written[prompt] = written
                if len(job.written) == len(job.texts) and not job.left:
                    job.left = True
                    self._hand_over([job], partial(self._wrote, job, live))
            return [row for row, (job, _) in enumerate(places) if job.left or _gave_up(job)]

        rows = {name: [row for job in jobs for row in job.columns[name]] for name in jobs[0].columns}
        limits = [limit for job in jobs for limit in job.limits]
        inputs = self._encoder.pad(rows, left=self._causal)
        live.backend.generate(inputs, limits=limits, on_step=on_step)


def _confidence(logits: FloatArray) -> FloatArray:
    """Probability of the best of the columns (n,)."""
    best: FloatArray = 1.0 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
    return best


def _gave_up(job: Job) -> bool:
    """Whether nobody waits for a job any more."""
    return job.future.cancelled()


def _resolve(job: Job, answer: Answered | Generated) -> None:
    if not job.future.done() and job.future.set_running_or_notify_cancel():
        job.future.set_result(answer)


def _fail(future: "Future[Any]", error: Exception) -> None:
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(error)
