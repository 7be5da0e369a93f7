"""The queue between clients and the model: threads that read requests, run the model on batches, and tell the answers.

All threads do all three, and there is one more of them than may run the model at once: so texts become tokens while
models run, and a request that comes alone is read, answered and told by one thread.
Whatever fails for one request fails that request alone. A thread that dies takes all requests with it.
"""

import copy
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from tanbr.errors import InputError
from tanbr.serve.chat import ChatTemplate
from tanbr.serve.config import MOST_WORKERS, ServeConfig, usable_cores
from tanbr.serve.decode import NotFinite
from tanbr.serve.engine import Engine, classify
from tanbr.serve.ids import RequestIds
from tanbr.serve.jobs import Job, Part, Replies, Room, assigned, columns_of, count
from tanbr.serve.labels import label_space, named_tasks
from tanbr.serve.panel import Broken, Live, Outbox, Panel
from tanbr.serve.passage import Relays
from tanbr.serve.records import Answered, Generated, Observer, OnToken, Overloaded, ServiceError, Stopping
from tanbr.serve.relay import Call, Conversations
from tanbr.serve.sampling import WritingOptions
from tanbr.serve.writing import PartRow
from tanbr.tasks.rows import Task
from tanbr.types import Text

# A slot and how many requests are being answered → how many more fit, and whether others must wait until it has turned
SlotRoom: TypeAlias = Callable[[int, int], tuple[float, bool]]
LOOK = 0.05  # seconds after which a worker that waits for a slot to turn looks again by itself


class Queue:
    """Answers requests with what was committed last. Thread-safe; it has threads of its own.

    To the outbox go `Answers`, before any client of them has its answer, and `Broken` if a version answers with NaN.
    """

    def __init__(
        self,
        engine: Engine,
        ids: RequestIds,
        *,
        tasks: Sequence[Task],
        config: ServeConfig,
        outbox: Outbox,
        observer: Observer | None = None,
        slot_room: SlotRoom = lambda slot, at_work: (math.inf, False),  # noqa: ARG005
    ) -> None:
        """Make a queue that is not yet started, of requests of these tasks; `look_again` when a slot has turned."""
        self.engine, self.room = engine, Room.of(engine, config)
        self.space = None if engine.writes else label_space(tasks, engine.columns)
        labels = 0 if engine.live.backend.embeds else len(engine.columns)
        self.classes = labels if self.space is None else self.space.classes  # columns that are labels
        self.tasks, self._config, self._outbox, self._observer = tuple(tasks), config, outbox, observer or Observer()
        self._slot_room = slot_room
        self._cores, self._parameters = usable_cores(), 0 if engine.writes else engine.live.backend.size.parameters
        here = config.device == "cpu" and not engine.relays  # a GPU runs one batch at a time; engines make their own
        self._workers = config.workers or (min(self._cores, MOST_WORKERS) if here else 1)
        self._encoder = copy.deepcopy(engine.encode)  # a tokenizer remembers how to cut: one thread reads …
        words = engine.encode.tokenizer
        self._words = words = copy.deepcopy(words) if engine.writes else words  # … while others turn tokens into texts
        self._chat = ChatTemplate(words)
        self.chat, self.folder_of = self._chat.render, engine.folder_of
        reweigh = None
        if config.answers == "posterior" and self.space is not None:
            reweigh = self.space.with_posterior
        self._replies = Replies(ids, words, outbox, self.classes, reweigh)
        talks = Conversations(config.conversation_seconds)
        self._relays = Relays(engine, self._replies, talks, self._observer, self._go_back)
        self._panel = engine.panel  # that the encoded jobs are assigned to
        self._lock = threading.Lock()
        self._wakes = threading.Condition(self._lock)
        self._incoming: list[Job] = []
        self._reading = False  # whether a thread turns texts into tokens
        self._encoded: deque[Part] = deque()
        self._free = self._workers  # batches that may begin
        self._unanswered: set[Job] = set()  # of all that were accepted
        self._waiting = 0  # texts accepted and not yet in a batch
        self._at_work: set[Part] = set()  # in a batch, and not yet told; not of models that write
        self._running = False
        self._faults: list[str] = []
        self._rate = 0.0  # texts per second of a busy worker, smoothed
        self._threads = [
            threading.Thread(target=self._watched, name=f"tanbr-model-{number}", daemon=True)
            for number in range(1, self._workers + 2)
        ]

    # --- clients ------------------------------------------------------------------------------------------------------

    def submit(
        self, texts: Sequence[Text], *, task: str | None = None, labels: Sequence[str] = ()
    ) -> "Future[Answered]":
        """Classify texts, or embed them; quick, never blocks.

        A client that names their task, or labels to choose from, is believed. Raises InputError for an unknown task,
        Overloaded or Stopping at once. The future holds Answered, or an InputError or ServiceError.
        """
        if self.engine.writes:
            raise InputError("this model writes text; it has no labels to classify with")
        return self._accept(Job(texts, named=named_tasks(self.tasks, task, labels)))

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int | None = None,
        options: WritingOptions = WritingOptions(),  # noqa: B008 - it is frozen
        on_token: OnToken | None = None,
        task: str | None = None,
    ) -> "Future[Generated]":
        """Write `options.n` answers to each prompt, those of the first prompt first; quick, never blocks.

        `on_token` gets each piece of text, in a worker's thread, until the future is cancelled. Fails as `submit` does.
        """
        if not self.engine.writes or self.engine.relays:
            raise InputError("this model cannot write text by itself")
        self.room.check(max_tokens)
        return self._accept(
            Job(
                [prompt for prompt in prompts for _ in range(options.n)],
                max_tokens=max_tokens,
                on_token=on_token,
                sampling=options.samplings(len(prompts), chance=secrets.randbits(63)),
                stop=options.stop,
                named=named_tasks(self.tasks, task),
            )
        )

    def relay(self, call: Call, *, task: str | None = None) -> "Future[dict[str, Any]]":
        """Have an engine answer a request as it is; never blocks, unless it is the first to name an expert.

        The future holds the engine's answer, or what a stream ends with. An EngineAnswer is the engine's own refusal.
        """
        if call.version is not None and call.version not in self.engine.versions:
            raise InputError(f"merge version {call.version} is not at hand")
        if call.expert is not None:
            self.engine.expert(call.expert)
        most = self._config.max_tokens
        texts = [one if isinstance(one, str) else self._words.decode(one) for one in call.prompts]
        if most is not None:
            asked = call.body.get("max_completion_tokens") or call.body.get("max_tokens")
            self.room.check(asked if isinstance(asked, int) else None)
            call = call if asked else replace(call, body={**call.body, "max_tokens": most})
        named = named_tasks(self.tasks, task)
        return self._accept(Job([text for text in texts for _ in range(call.n)], named=named, call=call))

    def _accept(self, job: Job) -> "Future[Any]":
        """Queue a job; Overloaded or Stopping instead if it cannot be."""
        if not job.texts:
            raise InputError("at least one text is needed")
        with self._lock:
            if self._faults:
                raise Stopping(f"the server cannot answer any more ({self._faults[0]}); it must be restarted")
            if not self._running:
                raise Stopping("the server is not taking requests; try another, or wait until it is ready again")
            waiting = len(self._unanswered) if self.engine.relays else self._waiting  # an engine has a queue of its own
            if waiting and waiting + len(job.texts) > self._config.queue:
                rate = self._rate * self._workers
                raise Overloaded(min(60.0, max(0.1, waiting / rate if rate else 1.0)))
            self._waiting += len(job.texts)
            self._unanswered.add(job)
            self._incoming.append(job)
            self._wakes.notify()
        job.future.add_done_callback(lambda _: self._forget(job))
        return job.future

    def _forget(self, job: Job) -> None:
        """Forget a job that is done; one that its client has cancelled leaves its place in the queue to others."""
        self._unanswered.discard(job)
        if job.future.cancelled():
            with self._lock:
                self._drop_cancelled()

    def _drop_cancelled(self) -> None:
        """Drop what nobody waits for any more; the caller holds the lock."""
        gone = [job for job in self._incoming if job.future.cancelled()]
        parts = [part for part in self._encoded if part.job.future.cancelled()]
        self._waiting -= sum(len(job.texts) for job in gone) + count(parts)
        self._incoming = [job for job in self._incoming if job not in gone]
        self._encoded = deque(part for part in self._encoded if part not in parts)

    # --- operators ----------------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Texts that wait."""
        return self._waiting

    def faults(self) -> tuple[str, ...]:
        """Say what keeps the queue from answering: dead threads, a model that is not whole; nothing if it can."""
        return (*self._faults, *filter(None, [self.engine.fault]))

    def start(self) -> None:
        """Take requests."""
        self._running = True
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float) -> bool:
        """Refuse new requests and answer those accepted; whether that was done in time."""
        self._chat.close()
        with self._lock:
            self._running = False
            self._wakes.notify_all()
        ends = time.monotonic() + timeout
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, ends - time.monotonic()))
        wait([job.future for job in list(self._unanswered)], timeout=max(0.0, ends - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads) and not self._unanswered

    def look_again(self) -> None:
        """Go on with what waits for a slot to turn."""
        with self._lock:
            self._wakes.notify_all()

    # --- threads ------------------------------------------------------------------------------------------------------

    def _watched(self) -> None:
        """Work; if the thread dies, say so and leave no request waiting."""
        try:
            while (step := self._next()) is not None:
                step()
        except BaseException as error:  # nobody else would ever hear of it
            fault = f"{threading.current_thread().name} died of {type(error).__name__}: {error}"
            with self._lock:
                self._faults.append(fault)
                self._incoming, self._running = [], False
                self._encoded.clear()
                self._waiting = 0
                self._wakes.notify_all()
            for job in list(self._unanswered):
                job.fail(ServiceError(f"the server cannot answer any more: {fault}"))
            self._observer.alarm(fault)

    def _next(self) -> Callable[[], None] | None:
        """Wait until there is a batch of one model, or requests to read; what to do then, None at the end."""
        with self._lock:
            while not (parts := self._next_batch()) and (self._reading or not self._incoming):
                if self._faults or not (self._running or self._waiting):
                    return None
                self._wakes.wait(LOOK if self._encoded or not self._running else None)
            if parts:
                self._free -= 1
                step = partial(self._run, parts, self._panel, busy=self._workers - self._free)
            else:
                jobs, self._incoming, self._reading = self._incoming, [], True
                step = partial(self._read, jobs)
            if (self._incoming and not self._reading) or (self._encoded and self._free):
                self._wakes.notify()
        return step

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read(self, jobs: Sequence[Job]) -> None:
        """Turn texts into tokens, and assign them to models."""
        panel = self.engine.panel
        unreadable = self._encode(jobs, panel)
        parts = [part for job in jobs if job not in unreadable for part in assigned(job, range(len(job.texts)), panel)]
        with self._lock:
            self._reading = False
            self._waiting -= sum(len(job.texts) for job in unreadable)
            self._encoded.extend(parts)
            self._drop_cancelled()  # some may have gone while they were read
            if panel is not self._panel:
                self._assign_again()
        for job, why in unreadable.items():
            job.fail(why)

    def _encode(self, jobs: Sequence[Job], panel: Panel) -> dict[Job, InputError]:
        """Encode texts, and recognise tasks for a panel, or if that fails job by job; why some fail."""
        texts = [text for job in jobs for text in job.texts]
        try:
            encoded = None if self.engine.writes else self._encoder.encode(texts)
            seen = None if panel.assignment is None else panel.assignment.recogniser.recognise(texts)
            end = 0
            for job in jobs:
                rows = slice(end, end := end + len(job.texts))
                if encoded is not None:
                    job.columns = {name: values[rows] for name, values in encoded.columns.items()}
                    job.cut = encoded.cut[rows] if any(encoded.cut[rows]) else ()
                elif job.call is None:
                    self.room.fit(job, self._encoder)
                job.seen = None if seen is None else seen.rows(rows)
        except Exception as error:  # the tokenizer raises whatever its library does
            if len(jobs) > 1:
                return {unread: why for job in jobs for unread, why in self._encode([job], panel).items()}
            return {jobs[0]: error if isinstance(error, InputError) else InputError(f"a text cannot be read ({error})")}
        return {}

    def _assign_again(self) -> None:
        self._panel = self.engine.panel
        self._encoded = deque(new for old in self._encoded for new in assigned(old.job, old.rows, self._panel))

    # --- batches; the caller holds the lock ---------------------------------------------------------------------------

    def _next_batch(self) -> list[Part]:
        """Take the parts that are next, as many as make up a batch; none while they must wait for a slot to turn."""
        if not self._encoded or not self._free:
            return []
        if self.engine.panel is not self._panel:
            self._assign_again()
        self._at_work = {part for part in self._at_work if not part.job.future.done()}
        left, waits = self._slot_room(self._panel.models[0].slot, count(self._at_work))
        if waits and len(self._encoded[0].rows) > left and self._running:
            return []
        # Workers that are free share what waits: two half batches at once are sooner done than a whole one.
        room = min(left, self._config.batch, math.ceil(count(self._encoded) / self._free))
        parts = self._first_of(self._encoded[0].place, room)
        if not self.engine.writes:  # an answer is long in the writing: nobody waits until it is counted
            self._at_work.update(parts)
        return parts

    def _first_of(self, place: int, room: float) -> list[Part]:
        """Take the parts for a model that waited longest, as many as fit; the first always does."""
        parts: list[Part] = []
        for part in self._encoded:
            if part.place == place:
                if parts and len(part.rows) > room:
                    break
                parts.append(part)
                room -= len(part.rows)
        taken = set(parts)
        self._encoded = deque(part for part in self._encoded if part not in taken)
        self._waiting -= count(parts)
        return parts

    # --- models -------------------------------------------------------------------------------------------------------

    def _run(self, parts: list[Part], panel: Panel, *, busy: int) -> None:
        """Answer a batch, one of so many that are `busy`; another may begin before its answers are told."""
        self._observer.queue(self._waiting)
        each = self._config.threads or (1 if self._is_short(parts) else max(1, self._cores // busy))
        if not self.engine.relays and torch.get_num_threads() != each:
            torch.set_num_threads(each)  # of this thread's own arithmetic
        started = time.perf_counter()
        tells = self._answer(parts, panel)
        took = time.perf_counter() - started
        if size := count(part for part in parts if part.left or self.engine.relays):
            self._rate = 0.8 * self._rate + 0.2 * size / took if self._rate else size / took
            self._observer.batch(size, took)
        with self._lock:
            self._free += 1
            if self._encoded:
                self._wakes.notify()
        for tell in tells:
            tell()

    def _is_short(self, parts: list[Part]) -> bool:
        """Whether a batch is so little work that more cores would not help."""
        short = self.engine.live.backend.short
        if not short:
            return False
        tokens = sum(len(part.job.columns["input_ids"][row]) for part in parts for row in part.rows)
        return tokens * self._parameters < short

    def _answer(self, parts: list[Part], panel: Panel) -> list[Callable[[], None]]:
        """Answer parts of one model together, or if that fails one by one; what is left to do is to tell them."""
        parts = [part for part in parts if part.wanted]
        try:
            return self._answer_together(parts, panel) if parts else []
        except Exception as error:  # whatever the model raises must not end the thread
            others = [part for part in parts if not part.left]
            again = [part for part in others if len(parts) > 1 and not part.streamed]  # no client gets a piece twice
            said = f"{type(error).__name__}: {error}"
            failed = [part for part in others if part not in again]
            for part in failed:
                part.fail(error if isinstance(error, ServiceError) else ServiceError(f"the model failed ({said})"))
            if failed or not again:
                self._observer.alarm(f"a batch failed: {said}")
            return [tell for part in again for tell in self._answer([part], panel)]

    def _answer_together(self, parts: list[Part], panel: Panel) -> list[Callable[[], None]]:
        """Answer parts; if the merge version is broken, go back to the one before and put them into the queue again."""
        for part in parts:
            part.began = time.perf_counter()
            if part.job.call is not None:
                self._relays.send(part, part.job.call, panel)
        if self.engine.relays:
            return []
        with self.engine.using(panel, parts[0].place) as live:
            try:
                if self.engine.writes:
                    self._write(parts, live)
                    return []
                logits = classify(live.backend, columns_of(parts), self._encoder, batch=self._config.batch)
                if not np.isfinite(logits).all():
                    raise NotFinite
                for part in parts:
                    part.left = True
                return [partial(self._tell, parts, partial(self._replies.classified, parts, logits, live))]
            except NotFinite:
                self._go_back(parts, live)
                return []

    def _write(self, parts: list[Part], live: Live) -> None:
        """Decode all prompts together; a part's answers are told when its last one ends."""

        def finished(part: Part) -> None:
            part.left = True
            self._tell([part], partial(self._replies.written, part, live))

        rows = []
        for part in parts:
            part.written = {}
            rows += [PartRow(part, prompt, self._words, finished=finished) for prompt in part.rows]
        live.backend.generate(self._encoder.pad(columns_of(parts), left=live.backend.causal), rows)

    def _tell(self, parts: list[Part], tell: Callable[[], None]) -> None:
        """Tell the answers of parts, to the learner and then to their clients."""
        try:
            tell()
        except Exception as error:  # ids, a learner's log: nothing of it may end the thread
            said = f"an answer could not be told ({type(error).__name__}: {error})"
            for part in parts:
                part.fail(ServiceError(said))
            self._observer.alarm(said)
        with self._lock:
            self._at_work.difference_update(parts)

    def _go_back(self, parts: list[Part], live: Live) -> None:
        """Let a broken merge version answer no more, and put its parts into the queue again."""
        self._outbox(Broken(live.version, live.slot))
        if not self.engine.revert(live):
            raise ServiceError(f"merge version {live.version} answers with NaN and no other is at hand")
        for part in parts:
            if part.streamed and not part.left:
                part.fail(ServiceError(f"merge version {live.version} broke off with NaN; send the prompt again"))
        again = [part for part in parts if part.wanted]
        with self._lock:
            self._waiting += count(again)
            self._encoded.extendleft(reversed(again))
            self._wakes.notify()
