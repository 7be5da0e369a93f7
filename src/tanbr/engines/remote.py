"""A model that an engine runs: blends are written where the engine can read them, prompts go to it over HTTP.

Weights in the engine have a label that names checkpoint, method and blend. Before anybody hears a token of an answer,
the engine is asked for its label. If that is another one, or nobody answers, the engine is *lost*: requests fail at
once, and a thread waits for it to come back and loads what answered last.
"""

import asyncio
import hashlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
from transformers import GenerationConfig

from tanbr.engines.connection import ANSWER_SECONDS, EngineError, EngineLost
from tanbr.engines.dialect import OURS, Dialect
from tanbr.engines.merge_files import DenseFile, MergeFile, MergeFiles
from tanbr.engines.same_model import check_same
from tanbr.errors import CheckpointError, TanbrError
from tanbr.merge import Moe
from tanbr.moe.text import Inputs, TextEncoder
from tanbr.serve.backends import Backend, Size
from tanbr.serve.decode import Decoded, More, NotFinite, OnStep, Step, Written
from tanbr.serve.lineage import made_for
from tanbr.serve.sampling import Sampling
from tanbr.types import Blend

log = logging.getLogger("tanbr.serve")

LOOK_SECONDS = 5.0  # between two looks at an engine that answers
LOST_SECONDS = 0.5  # … and at one that does not
CLOSE_SECONDS = 5.0  # that a load may keep us from leaving: a server has 30 to stop
NEUTRAL = "a"  # even this must not be answered with NaN
POLL_SECONDS = 0.05  # between two looks whether a client has given up, while nothing comes
EMPTY = 16  # pieces of an answer that may hold no token: engines send one or two, at its end
TOKENS = 2**31  # more than any vocabulary: a tokenizer fails at larger numbers
Heard: TypeAlias = "queue.SimpleQueue[tuple[int, Step | Exception]]"  # row, and what came of it


@dataclass(frozen=True, eq=False)
class Loaded:
    """Weights in the engine; each load makes a new value."""

    file: MergeFile
    label: str


class Remote(Backend):
    """A backend that any number of threads may ask at once; the engine makes batches of what they ask."""

    writes, causal, asked_when_loaded = True, True, True

    def __init__(self, moe: Moe, engine: Dialect, *, folder: str | None = None) -> None:
        """Take over an engine, which must run the same model; what it holds stays until the first `merge`."""
        self._moe, self._engine = moe, engine
        self._encode = TextEncoder.of(moe.path, vocab_size=moe.config["vocab_size"])
        self._fingerprint, self._stops = made_for(moe, ()).checkpoint, _stops(moe)
        self.positions = check_same(moe, self._encode, engine).positions
        self._files = MergeFiles(moe, engine.kind, folder=folder)  # not before: nothing is written for another engine
        self._wanted: Loaded | None = None  # what answers, or is to answer when the engine is back
        self._loaded: Loaded | None = None  # what it answers with; None while it is lost …
        self._why = "nothing was loaded yet"  # … and why
        self._doubtful = False  # whether a load has failed: its label may stand for weights it has in part
        self._changing = threading.Lock()  # one load at a time
        self._wakes, self._ends = threading.Event(), threading.Event()
        threading.Thread(target=self._watch, name="tanbr-engine-watch", daemon=True).start()

    def close(self) -> None:
        """Let the engine go; it keeps what it has loaded, unless it may have to read that again."""
        if self._ends.is_set():
            return
        self._ends.set()
        self._wakes.set()
        if self._changing.acquire(timeout=CLOSE_SECONDS):
            with suppress(TanbrError):
                self._engine.call(self._engine.leave(self._files.folder))
            self._changing.release()
        self._engine.close()  # ends a load that hangs
        self._files.close()

    @property
    def available(self) -> bool:
        """Whether the engine answers, and with the right weights."""
        return self._loaded is not None

    @property
    def size(self) -> Size:
        """What the engine holds, and what a blend changes of it, which takes shared memory, too."""
        parameters = sum(math.prod(shape) for shape in self._moe.plan.shapes.values())
        return Size(parameters, DenseFile.room(self._moe), self._files.nbytes)

    def twin(self, moe: Moe) -> Self:
        """Refuse: an engine holds one model."""
        raise CheckpointError(f"an engine holds one merge of {moe.path} at a time")

    # --- weights ------------------------------------------------------------------------------------------------------

    def stage(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:
        """Write a blend (K,) where the engine will read it; requests go on meanwhile."""
        if self._files.holding(blend) is None:
            started = time.perf_counter()
            self._files.other(None if self._wanted is None else self._wanted.file).write(moe, blend, share=share)
            log.info("%s: written in %.3f s", self.label_of(blend), time.perf_counter() - started)

    def merge(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:
        """Have the engine load a blend (K,); if it cannot, it comes back with what answered before."""
        self.stage(moe, blend, share=share)
        file = self._files.holding(blend)
        if file is None:
            raise CheckpointError("a merge was overwritten before it was loaded; try again")
        with self._changing:
            new = self._wanted is None or self._wanted.file is not file
            try:
                self._load(Loaded(file, self.label_of(blend)), new=new)
            except (EngineError, NotFinite) as error:
                why = "it answers with NaN" if isinstance(error, NotFinite) else str(error)
                self._lose(why)
                if new:
                    raise CheckpointError(f"the merge cannot be loaded: {why}") from None

    def label_of(self, blend: Blend) -> str:
        """Name the weights that a blend (K,) of this checkpoint is merged into."""
        said = f"{self._fingerprint} {self._moe.method} ".encode() + np.ascontiguousarray(blend, dtype="<f8").tobytes()
        return f"{OURS}{hashlib.sha256(said).hexdigest()[:24]}"

    def _load(self, loaded: Loaded, *, new: bool) -> None:
        """Load weights unless the engine has them; new ones must answer with numbers before anybody is answered."""
        self._loaded, self._why = None, "its weights are being changed"
        engine, started = self._engine, time.perf_counter()
        if engine.call(engine.label()) == loaded.label and not self._doubtful:
            engine.call(engine.wake())
        else:
            self._doubtful = True
            engine.call(engine.load(loaded.file.folder, loaded.label))
            if engine.call(engine.label()) != loaded.label:
                raise EngineLost("it does not hold the weights that it was given")
        if new:
            engine.call(self._answer_once())
        log.info("%s: loaded in %.3f s", loaded.label, time.perf_counter() - started)
        self._doubtful = False
        self._wanted = self._loaded = loaded

    async def _answer_once(self) -> None:
        # One token alone: vLLM's CPU kernels let NaN that a longer prompt leaves behind reach later answers.
        prompt = self._encode.encode([NEUTRAL]).columns["input_ids"][0][:1] or [0]
        try:
            async with asyncio.timeout(ANSWER_SECONDS), aclosing(self._engine.write(prompt, 1, self._stops)) as pieces:
                async for _ in pieces:
                    pass
        except TimeoutError:
            raise EngineLost("it does not answer with the weights that it was given") from None

    # --- an engine that is lost ---------------------------------------------------------------------------------------

    def _lose(self, why: str) -> None:
        if self._loaded is not None or self._why != why:
            log.warning("the engine is lost: %s", why)
        self._loaded, self._why = None, why
        self._wakes.set()

    def _watch(self) -> None:
        while not self._ends.is_set():
            self._wakes.wait(LOOK_SECONDS)
            self._wakes.clear()
            with self._changing:
                if self._wanted is not None and not self._ends.is_set():
                    self._look(self._wanted)
            if self._wakes.is_set():  # it is lost: do not ask too often
                self._ends.wait(LOST_SECONDS)

    def _look(self, wanted: Loaded) -> None:
        """Check that the engine has the wanted weights, and load them if it has lost them."""
        try:
            if self.available:
                label = self._engine.call(self._engine.label())
                if label == wanted.label:
                    return
                self._lose(f"it holds {label} instead of {wanted.label}")
            check_same(self._moe, self._encode, self._engine)
            self._load(wanted, new=False)
            log.warning("the engine is back, with what answered last")
        except TanbrError as error:
            self._lose(str(error))

    # --- answers ------------------------------------------------------------------------------------------------------

    def generate(
        self,
        inputs: Inputs,
        *,
        limits: Sequence[int],
        on_step: OnStep,
        more: More | None = None,  # noqa: ARG002 - the engine lets prompts join by itself
        sampling: Sequence[Sampling | None] = (),
    ) -> Decoded:
        """Answer padded prompts with at most limits[i] tokens, drawn as sampling[i] says."""
        loaded = self._loaded
        if loaded is None:
            raise EngineLost(f"the engine is lost: {self._why}")
        rows = zip(inputs["input_ids"], inputs["attention_mask"].astype(bool), strict=True)
        prompts = [ids[real].tolist() for ids, real in rows]
        streams = _Streams(self._engine, prompts, limits, self._stops, sampling)
        try:
            return streams.hear(lambda: self._check(loaded), on_step)
        except EngineLost as error:
            if self._loaded is loaded:
                self._lose(str(error))
            raise
        finally:
            streams.close()

    def _check(self, loaded: Loaded) -> None:
        """Make sure that what was just heard came from these weights, and that no load has replaced them."""
        label = self._engine.call(self._engine.label())
        if label != loaded.label or self._loaded is not loaded:
            raise EngineLost(f"it holds {label} instead of {loaded.label}")


class _Streams:
    """The prompts of one batch on their way: one stream each, heard as the steps of the batch."""

    def __init__(
        self,
        engine: Dialect,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        ends: frozenset[int],
        sampling: Sequence[Sampling | None],
    ) -> None:
        """Send all prompts at once, to be answered with at most limits[i] tokens, drawn as sampling[i] says.

        `ends` are the tokens that end an answer; they are no part of it.
        """
        self._engine, self._ends = engine, ends
        self._heard: Heard = queue.SimpleQueue()
        rows = zip(prompts, limits, sampling or [None] * len(prompts), strict=True)
        self._open: dict[int, Future[None]] = {
            row: engine.start(self._stream(row, *one)) for row, one in enumerate(rows)
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
            async with aclosing(self._engine.write(prompt, limit, self._ends, sampling)) as stream:
                async for piece in stream:  # read to its end, so that the connection can be used again
                    pieces += 1
                    chances += np.exp(np.minimum(piece.logprobs, 0.0)).tolist()
                    if len(chances) > limit or pieces > limit + EMPTY:
                        raise EngineLost(f"the engine writes more than the {limit} tokens it was asked for")
                    if not all(isinstance(token, int) and 0 <= token < TOKENS for token in piece.tokens):
                        raise EngineLost("the engine writes what is no token")
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


def _stops(moe: Moe) -> frozenset[int]:
    """Find the tokens that end an answer: what the checkpoint's configurations say, whatever its tokenizer does."""
    said = [moe.plan.config().eos_token_id]
    if (moe.path / "generation_config.json").is_file():
        said.append(GenerationConfig.from_pretrained(str(moe.path)).eos_token_id)
    return frozenset(one for ids in said if ids is not None for one in ([ids] if isinstance(ids, int) else ids))
