"""The prompts of one batch, sent to an engine: one stream each, heard as the steps of the batch."""

import queue
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from typing import TypeAlias

import numpy as np

from tanbr.engines.connection import Connection, EngineLost
from tanbr.engines.dialect import Dialect
from tanbr.serve.decode import Decoded, OnStep, Step, Written
from tanbr.serve.sampling import Sampling

POLL_SECONDS = 0.05  # between two looks whether a client has given up, while nothing comes
EMPTY = 16  # pieces of an answer that may hold no token: engines send one or two, at its end
Heard: TypeAlias = "queue.SimpleQueue[tuple[int, Step | Exception]]"  # row, and what came of it


class Streams:
    """Answers on their way."""

    def __init__(
        self,
        connection: Connection,
        dialect: Dialect,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        ends: Collection[int],
        sampling: Sequence[Sampling | None] = (),
    ) -> None:
        """Send all prompts at once, to be answered with at most limits[i] tokens, drawn as sampling[i] says.

        `ends` are the tokens that end an answer; they are no part of it.
        """
        self._dialect, self._ends = dialect, frozenset(ends)
        self._heard: Heard = queue.SimpleQueue()
        rows = zip(prompts, limits, sampling or [None] * len(prompts), strict=True)
        self._open: dict[int, Future[None]] = {
            row: connection.start(self._stream(row, *one)) for row, one in enumerate(rows)
        }

    def close(self) -> None:
        """Hang up on what is still being written: the engine stops writing it."""
        self._give_up(list(self._open))

    def hear(self, check: Callable[[], None], on_step: OnStep) -> Decoded:
        """Report what comes, token by token, until all rows have ended or were given up.

        `check` is called after a row's first token has come, and before `on_step` hears of it.
        """
        done: Decoded = [None] * len(self._open)
        checked: set[int] = set()
        while self._open:
            steps = self._next()
            if not steps:
                self._give_up(on_step(Step()))
            elif new := {row for row, _ in steps} - checked:
                check()
                checked |= new
            for row, step in steps:
                if row in self._open:
                    if step.ended:
                        done[row] = step.ended[row]
                        del self._open[row]
                    self._give_up(on_step(step))
        return done

    def _give_up(self, rows: Collection[int]) -> None:
        for row in rows:
            if (stream := self._open.pop(row, None)) is not None:
                stream.cancel()

    def _next(self) -> list[tuple[int, Step]]:
        """Take what has come; nothing if nothing comes for a while. Raises what went wrong."""
        steps: list[tuple[int, Step]] = []
        try:
            row, step = self._heard.get(timeout=POLL_SECONDS)
            while True:
                if isinstance(step, Exception):
                    raise step
                steps.append((row, step))
                row, step = self._heard.get_nowait()
        except queue.Empty:
            return steps

    async def _stream(self, row: int, prompt: Sequence[int], limit: int, sampling: Sampling | None) -> None:
        tokens: list[int] = []
        chances: list[float] = []  # of the tokens, and of the one that ends them
        pieces, ended = 0, False
        try:
            async with aclosing(self._dialect.write(prompt, limit, self._ends, sampling)) as stream:
                async for piece in stream:  # read to its end, so that the connection can be used again
                    pieces, chances = pieces + 1, chances + np.exp(piece.logprobs).tolist()
                    if len(chances) > limit or pieces > limit + EMPTY:
                        raise EngineLost(f"the engine writes more than the {limit} tokens it was asked for")
                    stopped = piece.end == "stop" and bool(self._ends.intersection(piece.tokens[-1:]))
                    new = piece.tokens[:-1] if stopped else piece.tokens
                    for token, chance in zip(new, chances[len(tokens) :], strict=False):
                        tokens.append(token)
                        self._heard.put((row, Step(added={row: token}, chances={row: chance})))
                    if piece.end is not None:
                        sure = float(np.mean(chances)) if chances else 1.0
                        self._heard.put((row, Step(ended={row: Written(tuple(tokens), piece.end == "stop", sure)})))
                        ended = True
            if not ended:
                raise EngineLost("the engine broke an answer off")
        except Exception as error:  # whoever waits must hear of it
            self._heard.put((row, error))
