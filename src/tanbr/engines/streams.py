"""Prompts through an engine: a stream each, heard by whoever asked, as the steps of a batch."""

import queue
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from typing import TypeAlias

import numpy as np

from tanbr.engines.connection import Connection, EngineLost
from tanbr.engines.dialect import Dialect, Piece
from tanbr.serve.decode import Decoded, OnStep, Step, Written
from tanbr.serve.sampling import Sampling

POLL_SECONDS = 0.05  # between two looks whether a client has given up, while nothing comes
EMPTY = 16  # pieces of an answer that may hold no token: engines send one or two, at its end
Events: TypeAlias = "queue.SimpleQueue[tuple[int, Piece | Exception]]"  # row, and what came of it


class Streams:
    """The prompts of one batch, on their way."""

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

        `ends` are the tokens that end an answer, and are no part of it.
        """
        self._dialect, self._ends = dialect, frozenset(ends)
        self._events: Events = queue.SimpleQueue()
        self._tokens: list[list[int]] = [[] for _ in prompts]
        self._chances: list[list[float]] = [[] for _ in prompts]
        self._open: dict[int, Future[None]] = {
            row: connection.start(self._stream(row, prompt, limit, how))
            for row, (prompt, limit, how) in enumerate(
                zip(prompts, limits, sampling or [None] * len(prompts), strict=True)
            )
        }

    def close(self) -> None:
        """Hang up on what is still being written: the engine gives it up."""
        for stream in self._open.values():
            stream.cancel()

    def hear(self, check: Callable[[], None], on_step: OnStep) -> Decoded:
        """Tell what comes, token by token; a row that is given up is closed.

        `check` is called after a row's first token has come and before anybody hears of it.
        """
        done: Decoded = [None] * len(self._tokens)
        checked: set[int] = set()
        while self._open:
            heard = self._next()
            if not heard:
                self._give_up(on_step(Step()))
            elif not checked.issuperset(row for row, _ in heard):
                check()
                checked.update(row for row, _ in heard)
            for row, piece in heard:
                for token, chance in zip(self._added(row, piece), np.exp(piece.logprobs).tolist(), strict=False):
                    if row in self._open:
                        self._tokens[row].append(token)
                        self._give_up(on_step(Step(added={row: token}, chances={row: chance})))
                if piece.end is not None and self._open.pop(row, None) is not None:
                    chance = float(np.mean(self._chances[row])) if self._chances[row] else 1.0
                    written = done[row] = Written(tuple(self._tokens[row]), piece.end == "stop", chance)
                    self._give_up(on_step(Step(ended={row: written})))
        return done

    def _added(self, row: int, piece: Piece) -> tuple[int, ...]:
        """Tokens that a piece adds to an answer: not the one that ends it."""
        self._chances[row] += np.exp(piece.logprobs).tolist()
        return piece.tokens[:-1] if piece.end == "stop" and self._ends.intersection(piece.tokens[-1:]) else piece.tokens

    def _give_up(self, rows: Collection[int]) -> None:
        for row in rows:
            if (stream := self._open.pop(row, None)) is not None:
                stream.cancel()

    def _next(self) -> list[tuple[int, Piece]]:
        """Take what has come, nothing if nothing comes for a while; what went wrong is raised."""
        heard = []
        try:
            heard.append(self._events.get(timeout=POLL_SECONDS))
            while True:
                heard.append(self._events.get_nowait())
        except queue.Empty:
            pass
        for _, piece in heard:
            if isinstance(piece, Exception):
                raise piece
        return [(row, piece) for row, piece in heard if isinstance(piece, Piece)]

    async def _stream(self, row: int, prompt: Sequence[int], limit: int, sampling: Sampling | None) -> None:
        try:
            ended, tokens, count = False, 0, 0
            async with aclosing(self._dialect.write(prompt, limit, self._ends, sampling)) as pieces:
                async for piece in pieces:
                    tokens, count = tokens + len(piece.tokens), count + 1
                    if tokens > limit or count > limit + EMPTY:
                        raise EngineLost(f"the engine writes more than the {limit} tokens it was asked for")
                    ended = ended or piece.end is not None
                    self._events.put((row, piece))
            if not ended:
                raise EngineLost("the engine broke an answer off")
        except Exception as error:  # whoever waits must hear of it
            self._events.put((row, error))
