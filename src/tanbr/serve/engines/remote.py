"""A model that an engine runs: blends are written where the engine can read them, prompts go to it over HTTP.

The weights in the engine have a label that names checkpoint, method and blend. Before anybody hears a token of an answer
the engine is asked for its label. If that is another one, or nobody answers, the engine is *lost*: requests fail at once,
and a thread waits for it to come back and loads what answered last.
"""

import hashlib
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np

from tanbr.errors import CheckpointError, ConfigError, InputError, TanbrError
from tanbr.merge import Moe
from tanbr.merge.int8 import Int8Loss
from tanbr.moe.text import Inputs, TextEncoder
from tanbr.serve.backends.backend import Size
from tanbr.serve.config import ServeConfig
from tanbr.serve.decode import Decoded, NotFinite, OnStep, Step, Written
from tanbr.serve.engines import ENGINES
from tanbr.serve.engines.connection import Connection, EngineLost
from tanbr.serve.engines.dense_file import DenseFile, DenseFiles
from tanbr.serve.engines.dialect import Dialect, EngineRefused, Piece
from tanbr.serve.engines.identity import check_causal, check_same
from tanbr.types import Blend, FloatArray

log = logging.getLogger("tanbr.serve")

LOOK_SECONDS = 5.0  # between two looks at an engine that answers
LOST_SECONDS = 0.5  # … and at one that does not
POLL_SECONDS = 0.05  # between two looks whether a client has given up


@dataclass(frozen=True, eq=False)
class Loaded:
    """Weights in the engine: one value for each time that any were loaded."""

    dense: DenseFile
    label: str


class Remote:
    """A backend that any number of threads may ask at once; the engine batches what they ask."""

    loss: Int8Loss | None = None
    writes, causal, columns = True, True, ()
    asked_when_loaded = True  # there is no second engine to look a merge over with

    def __init__(
        self, moe: Moe, dialect: Dialect, connection: Connection, files: DenseFiles, *, fingerprint: str
    ) -> None:
        """Take over an engine that must run this model; what it holds stays until the first `merge`."""
        self.readers = 0
        self._moe, self._dialect, self._connection, self._files = moe, dialect, connection, files
        self._encode = TextEncoder.of(moe.path, vocab_size=moe.config["vocab_size"])
        self._fingerprint = fingerprint
        self._ends = _ends(moe)
        self.positions = check_same(moe, self._encode, dialect, connection).positions
        self._wanted: Loaded | None = None  # what answers, or is to answer when the engine is back
        self._loaded: Loaded | None = None  # what it answers with; None while it is lost
        self._why = "nothing has been loaded yet"  # … and why
        self._changing = threading.Lock()  # one load at a time
        self._wakes = threading.Event()
        self._closed = False
        threading.Thread(target=self._watch, name="tanbr-engine-watch", daemon=True).start()

    def close(self) -> None:
        """Let the engine go; it keeps what it has loaded."""
        self._closed = True
        self._wakes.set()
        with self._changing:
            self._connection.close()
            self._files.close()

    @property
    def available(self) -> bool:
        """Whether the engine answers, and with the right weights."""
        return self._loaded is not None

    @property
    def size(self) -> Size:
        """What the engine holds; the next blend takes as much in shared memory."""
        parameters = sum(math.prod(shape) for shape in self._moe.plan.shapes.values())
        return Size(parameters, self._files.nbytes, self._files.nbytes)

    # --- weights ----------------------------------------------------------------------------------------------------

    def stage(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:
        """Write a blend (K,) where the engine will read it; nobody waits for that."""
        if self._files.holding(blend) is None:
            started = time.perf_counter()
            self._files.other(None if self._wanted is None else self._wanted.dense).write(moe, blend, share=share)
            log.info(
                "a dense checkpoint of %d bytes: written in %.3f s", self._files.nbytes, time.perf_counter() - started
            )

    def merge(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:
        """Have the engine load a blend (K,); if it cannot, what answered before is what it comes back with."""
        self.stage(moe, blend, share=share)
        dense = self._files.holding(blend)
        if dense is None:
            raise CheckpointError("a merge was overwritten before it was loaded")
        with self._changing:
            again = self._wanted is not None and self._wanted.dense is dense
            try:
                self._load(Loaded(dense, self.label_of(blend)), new=not again)
            except (EngineLost, EngineRefused, NotFinite) as error:
                reason = "its answers are NaN" if isinstance(error, NotFinite) else str(error)
                self._lose(reason)
                if not again:
                    raise CheckpointError(f"the merge cannot be loaded: {reason}") from None

    def label_of(self, blend: Blend) -> str:
        """Name the weights that a blend (K,) of this checkpoint is merged into."""
        said = f"{self._fingerprint} {self._moe.method} ".encode() + np.ascontiguousarray(blend, dtype="<f8").tobytes()
        return f"tanbr-{hashlib.sha256(said).hexdigest()[:24]}"

    def _load(self, loaded: Loaded, *, new: bool) -> None:
        """Load weights unless the engine has them; new ones must answer with numbers before anybody is answered."""
        self._loaded, self._why = None, "the engine is changing its weights"
        started = time.perf_counter()
        if self._connection.call(self._dialect.label()) == loaded.label:
            self._connection.call(self._dialect.wake())
        else:
            self._connection.call(self._dialect.load(loaded.dense.folder, loaded.label))
            if self._connection.call(self._dialect.label()) != loaded.label:
                raise EngineLost("the engine holds other weights than it was given")
        if new:
            self._connection.call(self._answered())
        log.info("the engine: %s loaded in %.3f s", loaded.label, time.perf_counter() - started)
        self._wanted = self._loaded = loaded

    async def _answered(self) -> None:
        async with aclosing(
            self._dialect.write(self._encode.encode(["a"]).columns["input_ids"][0] or [0], 1)
        ) as pieces:
            async for _ in pieces:
                pass

    # --- an engine that is lost ---------------------------------------------------------------------------------------

    def _lose(self, why: str) -> None:
        if self._loaded is not None or self._why != why:
            log.warning("the engine is lost: %s", why)
        self._loaded, self._why = None, why
        self._wakes.set()

    def _watch(self) -> None:
        while not self._closed:
            self._wakes.wait(LOOK_SECONDS if self.available else LOST_SECONDS)
            self._wakes.clear()
            with self._changing:
                if self._wanted is not None and not self._closed:
                    self._look(self._wanted)
            if not self.available:
                time.sleep(LOST_SECONDS)

    def _look(self, wanted: Loaded) -> None:
        """See that the engine has what it is to have, and give it back what it has lost."""
        try:
            if self.available:
                label = self._connection.call(self._dialect.label())
                if label == wanted.label:
                    return
                self._lose(f"its weights are {label}, not {wanted.label}")
            check_same(self._moe, self._encode, self._dialect, self._connection)
            self._load(wanted, new=False)
            log.warning("the engine is back, with what answered last")
        except TanbrError as error:
            self._lose(str(error))

    # --- answers ------------------------------------------------------------------------------------------------------

    def classify(self, inputs: Inputs) -> FloatArray:  # noqa: ARG002
        """Refuse: engines write."""
        raise InputError("this model writes text; it has no labels to classify with")

    def generate(self, inputs: Inputs, *, limits: Sequence[int], on_step: OnStep) -> Decoded:
        """Answer padded prompts, greedily, each by a stream of its own; a row that is given up is closed at once."""
        loaded = self._loaded
        if loaded is None:
            raise EngineLost(self._why)
        mask = inputs["attention_mask"].astype(bool)
        events: queue.SimpleQueue[tuple[int, Piece | Exception]] = queue.SimpleQueue()
        rows = {
            row: self._connection.start(self._stream(row, inputs["input_ids"][row][mask[row]].tolist(), limit, events))
            for row, limit in enumerate(limits)
        }
        try:
            return self._heard(rows, loaded, events, on_step)
        except EngineLost as error:
            if self._loaded is loaded:
                self._lose(str(error))
            raise
        finally:
            for stream in rows.values():
                stream.cancel()

    def _heard(
        self,
        rows: dict[int, "Future[None]"],
        loaded: Loaded,
        events: "queue.SimpleQueue[tuple[int, Piece | Exception]]",
        on_step: OnStep,
    ) -> Decoded:
        """Tell what the streams give; of a row nothing before the engine has said that its weights are the right ones."""
        done: Decoded = [None] * len(rows)
        tokens: list[list[int]] = [[] for _ in rows]
        chances: list[list[float]] = [[] for _ in rows]
        sure: set[int] = set()

        def step(heard: Step) -> None:
            for row in on_step(heard):
                if (stream := rows.pop(row, None)) is not None:
                    stream.cancel()

        while rows:
            heard = _waiting(events)
            if not heard:
                step(Step())
            for _, error in heard:
                if isinstance(error, Exception):
                    raise error
            if not sure.issuperset(row for row, _ in heard):
                self._check(loaded)
                sure |= {row for row, _ in heard}
            for row, piece in heard:
                if row not in rows or isinstance(piece, Exception):
                    continue
                stopped = piece.end == "stop"
                chances[row] += np.exp(piece.logprobs).tolist()
                new = (
                    piece.tokens[:-1]
                    if stopped and piece.tokens[-1:] and piece.tokens[-1] in self._ends
                    else piece.tokens
                )
                for token in new:
                    tokens[row].append(token)
                    step(Step(added={row: token}))
                if piece.end is not None and row in rows:
                    del rows[row]
                    mean = float(np.mean(chances[row])) if chances[row] else 1.0
                    done[row] = Written(tuple(tokens[row]), stopped, mean)
                    step(Step(ended={row: done[row]}))
        return done

    def _check(self, loaded: Loaded) -> None:
        """Make sure that what was just heard came from these weights: any load since makes another value of them."""
        label = self._connection.call(self._dialect.label())
        if label != loaded.label or self._loaded is not loaded:
            raise EngineLost(f"its weights are {label}, not {loaded.label}")

    async def _stream(
        self, row: int, prompt: list[int], limit: int, events: "queue.SimpleQueue[tuple[int, Piece | Exception]]"
    ) -> None:
        try:
            ended = False
            async with aclosing(self._dialect.write(prompt, limit)) as pieces:
                async for piece in pieces:
                    ended = piece.end is not None
                    events.put((row, piece))
            if not ended:
                events.put((row, EngineLost("the engine broke an answer off")))
        except Exception as error:  # whoever waits must hear of it
            events.put((row, error))


def _waiting(events: "queue.SimpleQueue[tuple[int, Piece | Exception]]") -> list[tuple[int, Piece | Exception]]:
    """Take what has come; nothing if nothing comes for a while."""
    heard = []
    try:
        heard.append(events.get(timeout=POLL_SECONDS))
        while True:
            heard.append(events.get_nowait())
    except queue.Empty:
        return heard


def _ends(moe: Moe) -> set[int]:
    """Find the tokens that end an answer."""
    found = moe.plan.config().eos_token_id
    return set() if found is None else {found} if isinstance(found, int) else set(found)


def connect(
    moe: Moe, *, engine: str, url: str, fingerprint: str, token: str | None = None, folder: str | None = None
) -> Remote:
    """Find an engine that runs this model; refused with a sentence if it is not there, or another."""
    check_causal(moe, engine)
    connection = Connection(url, token=token)
    try:
        dialect = ENGINES[engine](connection)
        check_same(moe, TextEncoder.of(moe.path, vocab_size=moe.config["vocab_size"]), dialect, connection)
        return Remote(moe, dialect, connection, DenseFiles(moe, folder=folder), fingerprint=fingerprint)
    except BaseException:
        connection.close()
        raise


def check_engine(config: ServeConfig, *, models: int) -> None:
    """Refuse settings that an engine has no use for."""
    if config.engine is None:
        if config.engine_url is not None:
            raise ConfigError("--engine-url needs --engine: vllm or sglang")
        return
    if config.engine_url is None:
        raise ConfigError(f"--engine {config.engine} needs --engine-url, the address at which it answers")
    if models > 1:
        raise ConfigError(
            f"an engine holds one model, and a panel has several (got models {models}); leave --models out"
        )
    if config.precision != "fp32":
        raise ConfigError(
            f"an engine computes as it was started (got precision {config.precision}); leave --precision out"
        )


def remote(
    config: ServeConfig,
    fingerprint: str,
    moe: Moe,
    *,
    blend: Blend | None,
    device: str,  # noqa: ARG001
    probes: Callable[[], Sequence[Inputs]],  # noqa: ARG001
    least_agreement: float,  # noqa: ARG001
) -> Remote:
    """Build the backend of a service whose configuration names an engine."""
    token = os.environ.get("TANBR_ENGINE_TOKEN")
    model = connect(
        moe,
        engine=str(config.engine),
        url=str(config.engine_url),
        fingerprint=fingerprint,
        token=token,
        folder=config.engine_folder,
    )
    try:
        if blend is not None:
            model.merge(moe, blend)
    except BaseException:
        model.close()
        raise
    return model
