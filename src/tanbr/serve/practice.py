"""The thread that practises with a buffer of its own, while no request waits, in a set share of one core's time.

Like the learner's thread it works at a lower priority than requests.
"""

import copy
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from tanbr.loop.learner import exercise
from tanbr.loop.practice import Exercise, known_rewards
from tanbr.serve.backends import Backend
from tanbr.serve.config import step_back
from tanbr.serve.engine import Engine, classify
from tanbr.serve.learner import LearnerThread
from tanbr.serve.records import ServiceError
from tanbr.tasks.metrics import Answer, LabelSpace
from tanbr.types import FloatArray

Result = TypeVar("Result")

PIECE = 8  # texts that are answered between two rests: about as long as one request takes
IDLE = 1.0  # seconds until it looks again for something to try
WAITS = 0.05  # seconds that it stays away while requests wait


class PracticeThread:
    """Answers exercises, and brings what they have earned to the learner."""

    def __init__(
        self, learning: LearnerThread, engine: Engine, space: LabelSpace, *, busy: Callable[[], bool] = lambda: False
    ) -> None:
        """Answer as the engine does, with the labels of its head (`space`); stay away while the server is `busy`."""
        self._learning, self._engine, self._space, self._busy = learning, engine, space, busy
        self._encode = copy.deepcopy(engine.encode)  # a tokenizer remembers how to cut: one for each thread
        config = learning.world.config
        self._share, self._by_posterior = config.practice, config.answers == "posterior"
        self._model: Backend | None = None  # made for the first exercise; it shares all that no blend changes
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tanbr-practice", daemon=True)

    def start(self) -> None:
        """Begin to practise."""
        self._thread.start()

    def stop(self) -> None:
        """End, in the middle of an exercise if need be: what it found so far is forgotten."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        torch.set_num_threads(1)
        step_back()
        while not self._stopping.is_set():
            try:
                began, wanted = time.thread_time(), exercise(self._learning.learner)
                if wanted is None:
                    self._stopping.wait(IDLE)
                elif (earned := self.answer(wanted)) is not None:
                    self._learning.call(partial(self._learning.practised, wanted, earned))
                    self._learning.alarms.observer.practised(len(wanted.rows), time.thread_time() - began)
            except ServiceError:
                return  # the server stops
            except Exception as error:  # a checkpoint that went, most likely: what answers goes on
                self._learning.alarms(f"practice has ended: {type(error).__name__}: {error}")
                return

    def answer(self, wanted: Exercise) -> FloatArray | None:
        """Answer an exercise's rows, a piece at a time: what they earn, and may earn (2, n); None if it was stopped."""
        engine = self._engine
        if self._model is None:
            self._model = engine.live.backend.twin(engine.moe)
        model, answers = self._model, list[Answer]()
        texts = [row.text for row in wanted.rows]
        engine.files.check()
        self._in_its_share(partial(model.merge, engine.moe, engine.moe.check(wanted.blend)))
        for start in range(0, len(texts), PIECE):
            while self._busy() and not self._stopping.wait(WAITS):
                pass
            if self._stopping.is_set():
                return None
            tokens = self._encode.encode(texts[start : start + PIECE]).columns
            answers += [*self._in_its_share(partial(classify, model, tokens, self._encode, batch=PIECE))]
        return known_rewards(self._space, wanted.rows, answers, by_posterior=self._by_posterior)

    def _in_its_share(self, work: Callable[[], Result]) -> Result:
        began = time.thread_time()
        done = work()
        self._stopping.wait((time.thread_time() - began) * (1.0 / self._share - 1.0))
        return done
