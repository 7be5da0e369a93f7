"""Dynamic batches, by a front thread and the workers that run the model.

The front thread does what Python must do per request (`front.py`); the workers run the model (`model_runs.py`) and
little else, each a batch of its own. So the one overlaps the others, and all cores have work. Whatever fails for one
request fails that request alone; a thread that dies all the same takes its requests with it, and `faults` says so.
"""

import copy
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any

import torch

from tanbr.errors import InputError
from tanbr.serve.cores import Cores
from tanbr.serve.engine import Engine
from tanbr.serve.front import Front, Repair
from tanbr.serve.ids import RequestIds
from tanbr.serve.jobs import Job, fail
from tanbr.serve.lineup import Lineup
from tanbr.serve.messages import Outbox
from tanbr.serve.model_runs import ModelRuns
from tanbr.serve.parts import placed
from tanbr.serve.prompts import Room
from tanbr.serve.records import Observer, Overloaded, ServiceError, Stopping


class Batcher:
    """The queue between clients and the threads."""

    def __init__(
        self,
        engine: Engine,
        ids: RequestIds,
        *,
        batch: int,
        wait: float,
        queue: int,
        cores: Cores,
        classes: int,
        room: Room,
        outbox: Outbox,
        observer: Observer,
        repair: Repair | None = None,
    ) -> None:
        self._batch, self._wait, self._queue, self._cores = batch, wait, queue, cores
        self._observer = observer
        encoder = copy.deepcopy(engine.encode)  # a tokenizer remembers how to cut: one for each thread
        self._engine, self._lineup = engine, engine.lineup
        self._requests = Front(
            encoder, ids, room=room, outbox=outbox, writes=engine.writes, classes=classes, repair=repair
        )
        self._runs = ModelRuns(
            engine,
            encoder,
            self._requests,
            batch=batch,
            hand_over=self._hand_over,
            put_back=self._put_back,
            take_more=self._take_more,
            outbox=outbox,
            observer=observer,
        )
        self._lock = threading.Lock()
        self._front_wakes, self._model_wakes = threading.Condition(self._lock), threading.Condition(self._lock)
        self._incoming: list[Job] = []
        self._encoded: deque[Job] = deque()
        self._done: list[tuple[list[Job], Callable[[], None]]] = []  # answered jobs, and what tells their answers
        self._waiting = 0  # texts accepted and not yet in a batch
        self._running = False
        self._free = 0  # workers that wait for a batch
        self._ended = 0  # workers that have
        self._faults: list[str] = []
        self._unanswered: set[Future[Any]] = set()  # of all jobs that were accepted
        self._rate = 0.0  # texts per second of a busy worker, smoothed
        runs = {"tanbr-front": self._front} | {f"tanbr-model-{n}": self._model for n in range(1, cores.workers + 1)}
        self._threads = [
            threading.Thread(target=self._watched, args=(run,), name=name, daemon=True) for name, run in runs.items()
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
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float) -> bool:
        """Refuse new requests and answer those accepted; whether that was done in time."""
        with self._lock:
            self._running = False
            self._front_wakes.notify()
            self._model_wakes.notify_all()
        ends = time.monotonic() + timeout
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, ends - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

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
                rate = self._rate * self._cores.workers
                raise Overloaded(min(60.0, max(0.1, self._waiting / rate if rate else 1.0)))
            self._waiting += len(job.texts)
            self._unanswered.add(job.future)
            self._incoming.append(job)
            self._front_wakes.notify()
        job.future.add_done_callback(self._forget)

    def _forget(self, future: "Future[Any]") -> None:
        """Forget a job that is done; one that its client has cancelled leaves its place in the queue to others."""
        self._unanswered.discard(future)
        if future.cancelled():
            with self._lock:
                self._incoming, self._encoded = self._wanted(self._incoming), deque(self._wanted(self._encoded))

    def _wanted(self, jobs: Collection[Job]) -> list[Job]:
        """Drop the jobs that nobody waits for; the caller holds the lock."""
        left = [job for job in jobs if job.wanted]
        self._waiting += sum(len(job.texts) for job in left) - sum(len(job.texts) for job in jobs)
        return left

    def _watched(self, run: Callable[[], None]) -> None:
        """Run a thread; if it dies, say so and leave no request waiting for it."""
        try:
            run()
        except BaseException as error:  # nobody else would ever hear of it
            fault = f"{threading.current_thread().name} died of {type(error).__name__}: {error}"
            with self._lock:
                self._faults.append(fault)
                self._incoming, self._ended, self._running = [], self._cores.workers, False
                self._encoded.clear()
                self._waiting = 0
                self._front_wakes.notify()
                self._model_wakes.notify_all()
            for future in list(self._unanswered):
                fail(future, ServiceError(f"the server cannot answer any more: {fault}"))
            self._observer.alarm(fault)

    # --- front thread ---------------------------------------------------------------------------------------------

    def _front(self) -> None:
        while True:
            with self._lock:
                self._front_wakes.wait_for(lambda: self._incoming or self._done or not self._running)
                jobs, self._incoming = self._incoming, []
                done, self._done = self._done, []
                if not jobs and not done and self._ended >= self._cores.workers:
                    return
                if not jobs and not done:  # stopping: the workers have yet to finish
                    self._model_wakes.notify_all()
                    self._front_wakes.wait(0.01)
                    continue
            for answered, tell in done:
                self._tell(answered, tell)
            if jobs:
                lineup = self._engine.lineup
                unreadable = self._requests.read(jobs, lineup)
                parts = [part for job in jobs if job not in unreadable for part in placed(job, lineup)]
                with self._lock:
                    self._waiting -= sum(len(job.texts) for job in unreadable)
                    self._encoded.extend(self._wanted(parts))
                    if lineup is not self._lineup:
                        self._place_again()
                    self._model_wakes.notify_all()
                for job, error in unreadable.items():
                    job.fail(error)

    def _tell(self, jobs: list[Job], tell: Callable[[], None]) -> None:
        """Tell answers; what fails then fails these jobs alone."""
        try:
            tell()
        except Exception as error:  # ids, a learner's log: nothing of it may end the thread
            said = f"an answer could not be told ({type(error).__name__}: {error})"
            for job in jobs:
                job.fail(ServiceError(said))
            self._observer.alarm(said)

    def _hand_over(self, jobs: list[Job], tell: Callable[[], None]) -> None:
        with self._lock:
            self._done.append((jobs, tell))
            self._front_wakes.notify()

    def _put_back(self, jobs: list[Job]) -> None:
        """Take back jobs that could not be answered, to be answered next."""
        with self._lock:
            self._waiting += sum(len(job.texts) for job in jobs)
            self._encoded.extendleft(reversed(self._wanted(jobs)))

    def _place_again(self) -> None:
        """Assign what waits to the models that answer now."""
        self._lineup = self._engine.lineup
        self._encoded = deque(part for job in self._encoded for part in placed(job, self._lineup))

    # --- workers --------------------------------------------------------------------------------------------------

    def _model(self) -> None:
        threads = None
        while taken := self._take():
            jobs, lineup, busy = taken
            if threads != (threads := self._cores.threads(busy)):
                torch.set_num_threads(threads)  # of this thread's own arithmetic
            started = time.perf_counter()
            size = self._runs.answer(jobs, lineup)
            if size:
                took = time.perf_counter() - started
                self._rate = 0.8 * self._rate + 0.2 * size / took if self._rate else size / took
                self._observer.batch(size, took)
        with self._lock:
            self._ended += 1
            self._front_wakes.notify()

    def _take(self) -> tuple[list[Job], Lineup, int] | None:
        """Wait for jobs that make up a batch of one model, and say how many workers are busy with that.

        None when all is done and the service stops.
        """
        with self._lock:
            self._free += 1
            while not self._encoded:
                if self._faults or (not self._running and not self._waiting):
                    return None
                self._model_wakes.wait(None if self._running else 0.01)
                self._wait_for_more()
            if self._engine.lineup is not self._lineup:
                self._place_again()
            jobs, lineup = self._next_batch(), self._lineup
            self._free -= 1
            self._waiting -= sum(len(job.texts) for job in jobs)
            depth, busy = self._waiting, self._cores.workers - self._free
        self._observer.queue(depth)
        return jobs, lineup, busy

    def _take_more(self, lineup: Lineup, place: int, room: int) -> list[Job]:
        """Take what waits for a model that is at work and has room; nothing once others answer."""
        with self._lock:
            if room < 1 or not self._encoded or lineup is not self._engine.lineup or lineup is not self._lineup:
                return []
            jobs = self._first_of(place, room, whole=True)
            self._waiting -= sum(len(job.texts) for job in jobs)
            return jobs

    def _wait_for_more(self) -> None:
        """Let a batch that is not full wait a while; another worker may take it meanwhile."""
        ends = time.monotonic() + self._wait
        while self._wait and self._running and 0 < sum(len(job.texts) for job in self._encoded) < self._batch:
            if not self._model_wakes.wait(ends - time.monotonic()):
                return

    def _next_batch(self) -> list[Job]:
        """Take the job that has waited longest, and of those for the same model as many as fit.

        Workers that are free share what waits, unless it has waited to be together: two half batches at once are
        sooner done than a whole one.
        """
        waiting = sum(len(job.texts) for job in self._encoded)
        room = self._batch if self._wait else min(self._batch, math.ceil(waiting / self._free))
        return self._first_of(self._encoded[0].place, room, whole=False)

    def _first_of(self, place: int, room: int, *, whole: bool) -> list[Job]:
        """Take the jobs for a model that have waited longest, as many as fit; unless `whole`, the first always does."""
        jobs: list[Job] = []
        for job in self._encoded:
            if job.place == place:
                if (jobs or whole) and len(job.texts) > room:
                    break
                jobs.append(job)
                room -= len(job.texts)
        taken = set(jobs)
        self._encoded = deque(job for job in self._encoded if job not in taken)
        return jobs
