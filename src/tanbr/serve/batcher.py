"""Dynamic batches, by two threads.

The front thread does what Python must do per request (tokens in, answers out); the model thread runs the model and
little else. So the one overlaps the other.
"""

import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tanbr.errors import InputError
from tanbr.serve.decode import Decoded, decode
from tanbr.serve.engine import Engine, Live
from tanbr.serve.ids import RequestIds
from tanbr.serve.records import Answered, Generated, Observer, OnToken, Overloaded, ServiceError, Stopping
from tanbr.types import FloatArray, Text


@dataclass(eq=False)
class Job:
    """The texts of one request, on their way."""

    texts: Sequence[Text]
    future: "Future[Any]"
    limit: int = 0  # tokens to write for each prompt; 0 for a classifier
    on_token: OnToken | None = None
    columns: dict[str, list[list[int]]] = field(default_factory=dict)  # input_ids and so on, a list per text


@dataclass(frozen=True, eq=False)
class Served:
    """A batch that was answered: what the slot thread learns from."""

    live: Live
    time: float  # seconds since 1970
    ids: list[bytes]  # (n,)
    texts: list[Text]
    logits: FloatArray | None  # (n, columns) of a classifier
    confidence: FloatArray  # (n,)
    tokens: list[list[int]] | None  # what a text model wrote


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
        deliver: Callable[[Served], None],
        broken: Callable[[Live], None],
        observer: Observer,
    ) -> None:
        self._engine, self._ids, self._observer = engine, ids, observer
        self._batch, self._wait, self._queue, self._threads = batch, wait, queue, threads
        self._classes = classes
        self._deliver, self._broken = deliver, broken
        self._encoder = copy.deepcopy(engine.encode)  # a tokenizer remembers how to pad: one for each thread
        self._pad = {"input_ids": self._encoder.tokenizer.pad_token_id or 0, "token_type_ids": 0, "attention_mask": 0}
        self._left = not engine.live.model.config.is_encoder_decoder and not classes  # a causal model's prompts
        self._lock = threading.Lock()
        self._front_wakes, self._model_wakes = threading.Condition(self._lock), threading.Condition(self._lock)
        self._incoming: list[Job] = []
        self._encoded: deque[Job] = deque()
        self._done: list[Callable[[], None]] = []
        self._waiting = 0  # texts accepted and not yet in a batch
        self._running = False
        self._model_ended = False
        self._rate = 0.0  # texts per second while busy, smoothed
        self._worker_threads = [
            threading.Thread(target=self._front, name="tanbr-front", daemon=True),
            threading.Thread(target=self._model, name="tanbr-model", daemon=True),
        ]

    @property
    def depth(self) -> int:
        """Texts that wait."""
        return self._waiting

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
            if not self._running:
                raise Stopping("the server is not taking requests; try another, or wait until it is ready again")
            if self._waiting and self._waiting + len(job.texts) > self._queue:
                raise Overloaded(min(60.0, max(0.1, self._waiting / self._rate if self._rate else 1.0)))
            self._waiting += len(job.texts)
            self._incoming.append(job)
            self._front_wakes.notify()

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
            for finish in done:
                finish()
            if jobs:
                self._encode(jobs)

    def _encode(self, jobs: list[Job]) -> None:
        try:
            texts = [text for job in jobs for text in job.texts]
            columns = self._encoder.tokenizer(texts, truncation=True, max_length=self._encoder.max_length)
        except Exception as error:  # the tokenizer raises whatever its library does
            with self._lock:
                self._waiting -= sum(len(job.texts) for job in jobs)
            for job in jobs:
                _fail(job, ServiceError(f"the texts could not be read ({error})"))
            return
        start = 0
        for job in jobs:
            end = start + len(job.texts)
            job.columns = {name: values[start:end] for name, values in columns.items()}
            start = end
        with self._lock:
            self._encoded.extend(jobs)
            self._model_wakes.notify()

    def _hand_over(self, finish: Callable[[], None]) -> None:
        with self._lock:
            self._done.append(finish)
            self._front_wakes.notify()

    # --- model thread ---------------------------------------------------------------------------------------------

    def _model(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        while jobs := self._take():
            formed = time.perf_counter()
            jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            if jobs:
                try:
                    self._answer(jobs, formed)
                except Exception as error:  # whatever the model raises must not end the thread
                    for job in jobs:
                        _fail(job, ServiceError(f"the model failed ({type(error).__name__}: {error})"))
                    self._observer.alarm(f"a batch failed: {type(error).__name__}: {error}")
        with self._lock:
            self._model_ended = True
            self._front_wakes.notify()

    def _take(self) -> list[Job]:
        """Wait for jobs that make up a batch; none when all is done and the service stops."""
        with self._lock:
            while not self._encoded:
                if not self._running and not self._waiting:
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

    def _answer(self, jobs: list[Job], formed: float) -> None:
        texts = [text for job in jobs for text in job.texts]
        while True:
            with self._engine.using() as live:
                run = self._classify if self._classes else self._write
                result, confidence = run(jobs, live)
            if np.isfinite(confidence).all():
                break
            self._broken(live)
            now = self._engine.revert(live)
            if now is None or now is live:
                raise ServiceError(f"merge version {live.version} answers with NaN and no other is at hand")
        took = time.perf_counter() - formed
        self._rate = 0.8 * self._rate + 0.2 * len(texts) / took if self._rate else len(texts) / took
        raw = self._ids.issue(live.slot, len(texts))
        logits = result if isinstance(result, np.ndarray) else None
        tokens = None if isinstance(result, np.ndarray) else result.tokens
        self._hand_over(lambda: self._finish(jobs, raw, result, live))
        self._deliver(Served(live, time.time(), raw, texts, logits, confidence, tokens))
        self._observer.batch(len(texts), took)

    @torch.inference_mode()
    def _classify(self, jobs: list[Job], live: Live) -> tuple[FloatArray, FloatArray]:
        """Logits (n, columns) and the probability of the best label (n,), which is NaN if a logit is."""
        parts = [live.model(**inputs).logits for inputs in self._inputs(jobs, live)]
        logits = (parts[0] if len(parts) == 1 else torch.cat(parts)).double()
        confidence = logits[:, : self._classes].softmax(dim=1).amax(dim=1) + 0.0 * logits.sum(dim=1)
        return logits.cpu().numpy(), confidence.cpu().numpy()

    def _write(self, jobs: list[Job], live: Live) -> tuple[Decoded, FloatArray]:
        """Decode all prompts together; jobs that stream hear their pieces as they are made."""
        rows = [(job, index) for job in jobs for index in range(len(job.texts))]
        streams = [_Stream(job, index, self._encoder.tokenizer) for job, index in rows]
        inputs = next(iter(self._inputs(jobs, live, whole=True)))

        def on_step(added: list[int | None]) -> None:
            for stream, token in zip(streams, added, strict=True):
                stream.add(token)

        done = decode(live.model, inputs, limits=[job.limit for job, _ in rows], on_step=on_step)
        return done, done.confidence

    def _inputs(self, jobs: list[Job], live: Live, *, whole: bool = False) -> list[Mapping[str, Tensor]]:
        """Pad the jobs' texts; more than a batch of them in several parts."""
        names = jobs[0].columns
        rows = {name: [row for job in jobs for row in job.columns[name]] for name in names}
        count = len(rows["input_ids"])
        size = count if whole else self._batch
        parts: list[Mapping[str, Tensor]] = []
        for start in range(0, count, size):
            part = {name: values[start : start + size] for name, values in rows.items()}
            length = max(len(row) for row in part["input_ids"])
            padded = {}
            for name, values in part.items():
                table = np.full((len(values), length), self._pad.get(name, 0), dtype=np.int64)
                for i, row in enumerate(values):
                    if self._left:
                        table[i, length - len(row) :] = row
                    else:
                        table[i, : len(row)] = row
                padded[name] = torch.from_numpy(table).to(live.model.device)
            parts.append(padded)
        return parts

    def _finish(self, jobs: list[Job], raw: list[bytes], result: "FloatArray | Decoded", live: Live) -> None:
        start = 0
        for job in jobs:
            rows = slice(start, start + len(job.texts))
            start = rows.stop
            ids = tuple(self._ids.show(value) for value in raw[rows])
            if isinstance(result, np.ndarray):
                answer: Answered | Generated = Answered(ids, result[rows], live.version)
            else:
                tokens = result.tokens[rows]
                answer = Generated(
                    request_ids=ids,
                    texts=tuple(self._encoder.tokenizer.batch_decode(tokens, skip_special_tokens=True)),
                    prompt_tokens=tuple(len(row) for row in job.columns["input_ids"]),
                    completion_tokens=tuple(len(row) for row in tokens),
                    finish_reasons=tuple("stop" if ended else "length" for ended in result.stopped[rows]),
                    merge_version=live.version,
                )
            job.future.set_result(answer)


class _Stream:
    """Turns one prompt's tokens into pieces of text, each when it can no longer change."""

    def __init__(self, job: Job, index: int, tokenizer: Any) -> None:
        self._job, self._index, self._tokenizer = job, index, tokenizer
        self._tokens: list[int] = []
        self._told = ""

    def add(self, token: int | None) -> None:
        """Take the next token; None is none."""
        if token is None or self._job.on_token is None:
            return
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        if text.startswith(self._told) and len(text) > len(self._told) and not text.endswith("\ufffd"):
            self._job.on_token(self._index, text[len(self._told) :])
            self._told = text


def _fail(job: Job, error: Exception) -> None:
    if not job.future.done():
        job.future.set_exception(error)
