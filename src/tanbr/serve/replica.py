"""What answers: an engine and its batches. It does as the learner says, and says what it answered; no more."""

import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from tanbr.errors import InputError
from tanbr.moe.text import positions
from tanbr.serve.batcher import Batcher
from tanbr.serve.chat import ChatTemplate
from tanbr.serve.config import ServeConfig
from tanbr.serve.cores import Cores
from tanbr.serve.engine import Engine
from tanbr.serve.front import Repair
from tanbr.serve.ids import RequestIds
from tanbr.serve.jobs import Job
from tanbr.serve.manner import Manner
from tanbr.serve.messages import Outbox
from tanbr.serve.prompts import Room
from tanbr.serve.records import Answered, Generated, Observer, OnToken
from tanbr.serve.sampling import samplings
from tanbr.types import FloatArray, Text


class Replica:
    """Answers requests with what was committed last. Thread-safe; it has threads of its own.

    Commands come to its `engine` (`prepare`, `commit`, `discard`), messages go out (`serve.messages`, to the outbox):
    `Answers` before any client of them hears, `Broken` if a version answers with NaN.
    """

    def __init__(
        self,
        engine: Engine,
        ids: RequestIds,
        *,
        classes: int,
        config: ServeConfig,
        outbox: Outbox,
        observer: Observer | None = None,
        repair: Repair | None = None,
    ) -> None:
        """Make a replica that is not yet started; `classes` is how many of a classifier's columns are labels."""
        self.engine = engine
        self.room = room_of(engine, config)
        self._chat = ChatTemplate(engine.encode.tokenizer)
        self._batcher = Batcher(
            engine,
            ids,
            batch=config.batch,
            wait=config.batch_wait,
            queue=config.queue,
            cores=Cores.of(config),
            classes=classes,
            room=self.room,
            outbox=outbox,
            observer=observer or Observer(),
            repair=repair,
        )

    # --- clients ----------------------------------------------------------------------------------------------------

    def submit(self, texts: Sequence[Text], *, named: FloatArray | None = None) -> "Future[Answered]":
        """Classify texts, of the tasks `named` (V,), 1 or 0 each, if these are known; quick, never blocks.

        Raises Overloaded or Stopping at once. The future holds Answered, or an InputError or ServiceError.
        """
        if self.engine.writes:
            raise InputError("this model writes text; it has no labels to classify with")
        return self._queue(Job(texts, named=named))

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int | None = None,
        manner: Manner = Manner(),  # noqa: B008 - it is frozen
        on_token: OnToken | None = None,
        named: FloatArray | None = None,
    ) -> "Future[Generated]":
        """Write `manner.n` answers to each prompt, those of the first prompt first; quick, never blocks.

        `on_token` hears each piece of text as it is made, from the model's thread. Once the future is cancelled, no
        further token is written for it. Raises and fails as `submit` does.
        """
        if not self.engine.writes:
            raise InputError("this model classifies; it cannot write text")
        self.room.check(max_tokens)
        texts = [prompt for prompt in prompts for _ in range(manner.n)]
        how = samplings(manner, len(prompts), chance=secrets.randbits(63))
        return self._queue(
            Job(texts, max_tokens=max_tokens, on_token=on_token, sampling=how, stop=manner.stop, named=named)
        )

    def chat(self, messages: Sequence[Mapping[str, str]]) -> "Future[str]":
        """Make a prompt of a conversation, of roles and contents, by the tokenizer's own template; never blocks."""
        return self._chat.render(messages)

    @property
    def depth(self) -> int:
        """Texts that wait."""
        return self._batcher.depth

    # --- operators --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take requests."""
        self._batcher.start()

    def stop(self, timeout: float) -> bool:
        """Refuse new requests and answer those accepted; whether that was done in time."""
        self._chat.close()
        return self._batcher.stop(timeout)

    def faults(self) -> tuple[str, ...]:
        """Say what keeps this replica from answering: dead threads, a model that is not whole; nothing if it can."""
        return self._batcher.faults() + self.engine.faults()

    def _queue(self, job: Job) -> "Future[Any]":
        self._batcher.submit(job)
        return job.future


def room_of(engine: Engine, config: ServeConfig) -> Room:
    """Find what a model can read and write: its positions are the answer's, too, if it goes on from its prompt."""
    backend, found = engine.live.backend, positions(engine.moe.path)
    if backend.positions is not None:
        found = backend.positions if found is None else min(found, backend.positions)
    answer = config.max_tokens if found is None else min(config.max_tokens, found - 1)
    return Room(engine.encode.max_length, answer, found if backend.causal else None, config.too_long)
