"""Merges that engines run: blends are written where an engine can read them, requests go to it over HTTP as they are.

Weights in an engine have a label, and nobody hears a token of an answer that did not come from the right ones. If an
engine does not answer, or lacks what it was given, it is *lost*: requests fail at once, and a thread waits for it to
come back and loads what answered last.
"""

import asyncio
import hashlib
import json
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tanbr.engines.connection import LOAD_SECONDS, TRACED, EngineError, EngineLost
from tanbr.engines.dialect import OURS, Dialect, check_same
from tanbr.engines.merge_files import DenseFile, MergeFile, MergeFiles
from tanbr.errors import CheckpointError, TanbrError
from tanbr.merge import Moe
from tanbr.moe.text import TextEncoder
from tanbr.serve.backends import Backend, Size
from tanbr.serve.decode import NotFinite
from tanbr.serve.lineage import made_for
from tanbr.serve.records import EngineAnswer
from tanbr.types import Blend

log = logging.getLogger("tanbr.serve")

LOOK_SECONDS = 5.0  # between two looks at an engine that answers
LOST_SECONDS = 0.5  # … and at one that does not
CLOSE_SECONDS = 5.0  # that a load, or an engine that hangs, may keep us from leaving: a server has 30 to stop
WRITE = "/v1/completions"
ONE_TOKEN = {"prompt": [0], "max_tokens": 1, "temperature": 0, "logprobs": 1, "stream": True}
OWN = (401, 403)  # what an engine says to our own key: the client cannot mend it


@dataclass(frozen=True, eq=False)
class Loaded:
    """Weights in an engine; each load makes a new value."""

    file: MergeFile
    label: str


class Host:
    """One engine, which must run the same model, and the merges that it is to hold."""

    def __init__(
        self,
        moe: Moe,
        encode: TextEncoder,
        engine: Dialect,
        *,
        models: int = 1,
        rank: int = 1,
        folder: str | None = None,
    ) -> None:
        """Take over an engine that is to hold a panel of `models`; what it has stays until the first merge."""
        self.moe, self.engine, self._encode = moe, engine, encode
        self._made_for = f"{made_for(moe, ()).checkpoint} {moe.method} ".encode()
        self.positions = check_same(moe, encode, engine).positions
        engine.call(engine.fits(models=models, rank=rank))
        count = 3 * models if engine.many else 2  # what answers, what answered before, what comes; or what is loaded
        self.files = MergeFiles(moe, engine.kind, count=count, folder=folder)  # after all checks: nothing is left
        self.merges: list[Remote] = []
        self.why = ""  # why the engine is lost; empty while it is not
        self.doubtful = False  # whether a load has failed: its label may stand for weights it has in part
        self.changing = threading.Lock()  # one load at a time
        self.wakes, self._ends = threading.Event(), threading.Event()
        threading.Thread(target=self._watch, name="tanbr-engine-watch", daemon=True).start()

    def close(self) -> None:
        """Let the engine go; it keeps what it has loaded, unless it may have to read that again."""
        if self._ends.is_set():
            return
        self._ends.set()
        self.wakes.set()
        if self.changing.acquire(timeout=CLOSE_SECONDS):
            with suppress(TanbrError, TimeoutError):
                for one in self.merges:
                    if one.wanted is not None:
                        self.engine.start(self.engine.unload(one.wanted.label)).result(CLOSE_SECONDS)
            self.changing.release()
        self.engine.close()  # ends what hangs
        self.files.close()

    def label_of(self, blend: Blend) -> str:
        """Name the weights that a blend (K,) is merged into, by checkpoint, method and blend.

        Where an engine holds several merges, each load has a name of its own: no cache and no other server knows it.
        """
        said = hashlib.sha256(self._made_for + np.ascontiguousarray(blend, dtype="<f8").tobytes()).hexdigest()[:24]
        return f"{OURS}{said}-{secrets.token_hex(4)}" if self.engine.many else f"{OURS}{said}"

    def load(self, wanted: Loaded, *, new: bool) -> None:
        """Load weights unless the engine has them; new ones must answer with numbers before anybody is answered."""
        engine, started = self.engine, time.perf_counter()
        if self.doubtful or wanted.label not in engine.call(engine.held()):
            self.doubtful = not engine.many
            engine.call(engine.load(wanted.file, wanted.label))
            if wanted.label not in engine.call(engine.held()):
                raise EngineLost("it does not hold the weights that it was given")
        else:
            engine.call(engine.wake())
        if new:
            engine.call(self._answer_once(wanted.label))
        self.doubtful = False
        log.info("%s: loaded in %.3f s", wanted.label, time.perf_counter() - started)

    async def _answer_once(self, label: str) -> None:
        # One token alone: vLLM's CPU kernels let NaN that a longer prompt leaves behind reach later answers.
        try:
            async with (
                asyncio.timeout(LOAD_SECONDS),  # an engine may compile what it needs for its first adapter
                aclosing(self.engine.events(WRITE, self.engine.asked(ONE_TOKEN, label))) as events,
            ):
                async for event in events:
                    if "error" in event:
                        raise _broken_off(event["error"])
                    _check_numbers(event)
        except TimeoutError:
            raise EngineLost("it does not answer with the weights that it was given") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise EngineLost(f"it answers as no engine does ({type(error).__name__}: {error})") from None

    def lose(self, why: str) -> None:
        """Note that the engine is lost."""
        if self.why != why:
            log.warning("the engine at %s is lost: %s", self.engine.url, why)
        self.why = why
        self.wakes.set()

    def _watch(self) -> None:
        while not self._ends.is_set():
            self.wakes.wait(LOOK_SECONDS)
            self.wakes.clear()
            with self.changing:
                if not self._ends.is_set():
                    self._look([one.wanted for one in self.merges if one.wanted is not None])
            if self.wakes.is_set():  # it is lost: do not ask too often
                self._ends.wait(LOST_SECONDS)

    def _look(self, wanted: Sequence[Loaded]) -> None:
        """Check that the engine has the wanted weights, and load them if it has lost some."""
        try:
            if not self.why:
                held = self.engine.call(self.engine.held()) if wanted else ()
                missing = [one.label for one in wanted if one.label not in held]
                if not missing:
                    return
                self.lose(f"it holds {', '.join(held) or 'nothing'} instead of {missing[0]}")
            check_same(self.moe, self._encode, self.engine)
            for one in wanted:
                self.load(one, new=False)
            self.why = ""
            log.warning("the engine at %s is back, with what answered last", self.engine.url)
        except TanbrError as error:
            self.lose(str(error))


class Remote(Backend):
    """One merge in an engine: one of several, or the only one. The engine makes batches of what it is asked."""

    writes, causal, relays, asked_when_loaded = True, True, True, True

    def __init__(self, hosts: Sequence[Host]) -> None:
        """Take a place in the engine that holds fewest."""
        self._hosts, self._host = hosts, min(hosts, key=lambda host: len(host.merges))
        if self._host.merges and not self._host.engine.many:
            raise CheckpointError(
                f"{len(hosts)} engines hold {len(hosts)} whole models; give --engine-url once for each"
            )
        self.positions, self.many = self._host.positions, self._host.engine.many
        self.wanted: Loaded | None = None  # what answers, or is to answer when the engine is back
        self._files: list[MergeFile] = []
        self._host.merges.append(self)

    def close(self) -> None:
        """Let the engines go."""
        for host in self._hosts:
            host.close()

    @property
    def available(self) -> bool:
        """Whether the engine answers, and with the right weights."""
        return self.wanted is not None and not self._host.why

    @property
    def adapter(self) -> tuple[str, str] | None:  # type: ignore[override]
        """What the engine calls it, and where the engine reads it."""
        return (self.wanted.label, str(self.wanted.file.folder)) if self.wanted is not None and self.many else None

    @property
    def size(self) -> Size:
        """What the engine holds, and what a blend changes of it, which takes shared memory, too."""
        moe = self._host.moe
        parameters = sum(math.prod(shape) for shape in moe.plan.shapes.values())
        return Size(parameters, DenseFile.room(moe), self._host.files.nbytes)

    def spares(self, models: int) -> int:
        """Hold the models that come and those that answered before beside a panel, or one whole model per engine."""
        if self.many:
            return 2 * models
        if len(self._hosts) < models:
            raise CheckpointError(
                f"{models} whole models need as many engines (got {len(self._hosts)}); give --engine-url once for each"
            )
        return len(self._hosts) - models

    def twin(self, moe: Moe) -> Self:  # noqa: ARG002 - all are of one checkpoint
        """Take another place in the same engines."""
        return type(self)(self._hosts)

    def stage(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:
        """Write a blend (K,) where the engine will read it; requests go on meanwhile."""
        if not any(one.holds(blend) for one in self._files):
            started, used = time.perf_counter(), None if self.wanted is None else self.wanted.file
            if not [one for one in self._files if one is not used]:
                self._files.append(self._host.files.new())
            next(one for one in self._files if one is not used).write(moe, blend, share=share)
            log.info("a merge was written in %.3f s", time.perf_counter() - started)

    def merge(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:
        """Have the engine load a blend (K,); if it cannot, a whole model comes back with what answered before."""
        host, engine, old = self._host, self._host.engine, self.wanted
        if self.many and old is not None:
            with host.changing:
                self.wanted = None  # nobody is answered with it, and its folder may go
                self._try(lambda: engine.call(engine.unload(old.label)))
        self.stage(moe, blend, share=share)
        loaded = Loaded(next(one for one in self._files if one.holds(blend)), host.label_of(blend))
        with host.changing:
            if old is None or self.many or old.file is not loaded.file:
                self._try(lambda: host.load(loaded, new=True))
            else:
                with suppress(CheckpointError):
                    self._try(lambda: host.load(loaded, new=False))
            self.wanted = loaded

    def _try(self, work: Callable[[], None]) -> None:
        """Change what the engine holds; after a failure it is lost, unless all else that it holds is whole."""
        try:
            work()
        except (EngineError, NotFinite) as error:
            why = "it answers with NaN" if isinstance(error, NotFinite) else str(error)
            if not self.many or isinstance(error, EngineLost):
                self._host.lose(why)
            raise CheckpointError(f"the merge cannot be loaded: {why}") from None

    def relay(
        self,
        path: str,
        body: Mapping[str, Any],
        hear: Callable[[dict[str, Any]], None],
        headers: Mapping[str, str] | None = None,
    ) -> "Future[None]":
        """Have the engine answer a client's request; `hear` gets its answer, or each event of a stream."""
        loaded, host, engine = self.wanted, self._host, self._host.engine
        if loaded is None or host.why:
            raise EngineLost(f"the engine at {engine.url} is lost: {host.why or 'nothing was loaded yet'}")

        async def answered() -> None:
            TRACED.set(headers)
            await self._relay(path, engine.asked(body, loaded.label), hear, loaded)

        return engine.start(answered())

    async def _relay(
        self, path: str, asked: dict[str, Any], hear: Callable[[dict[str, Any]], None], loaded: Loaded
    ) -> None:
        engine, confirmed = self._host.engine, False
        try:
            async with engine.turn(loaded.label), aclosing(engine.events(path, asked)) as said:
                async for event in said:
                    if "error" in event:
                        raise _broken_off(event["error"])
                    if not confirmed:
                        await engine.confirm(event, loaded.label)
                        confirmed = True
                        if self.wanted is not loaded:
                            raise EngineLost("its weights were changed meanwhile")
                    hear(event)
        except EngineError as error:
            lost = self._meaning(error, asked)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            lost = EngineLost(f"the engine answers as no engine does ({type(error).__name__}: {error})")
        else:
            return
        if isinstance(lost, EngineLost) and self.wanted is loaded:
            self._host.lose(str(lost))
        raise lost

    def _meaning(self, error: EngineError, asked: Mapping[str, Any]) -> Exception:
        """Tell what is the client's to mend, and passed on, from an engine that is lost."""
        if error.status is None or error.status in OWN or error.status < 400:
            return EngineLost(str(error))
        if "JSON compliant" in error.said:  # how Python refuses to write NaN
            return NotFinite()
        if error.status == 404 and str(asked.get("model", "")) in error.body:
            return EngineLost(f"it has no {asked['model']}")
        self._host.wakes.set()  # an engine that is dying may say so, too: look at it
        return EngineAnswer(error.status, error.body, error.said)


def _check_numbers(event: dict[str, Any]) -> None:
    """Refuse an answer with NaN among its probabilities."""
    for choice in event.get("choices") or ():
        logprobs = choice.get("logprobs") or {}
        said = logprobs.get("token_logprobs") or [one["logprob"] for one in logprobs.get("content") or ()]
        if any(value is None or not math.isfinite(value) for value in said):
            raise NotFinite


def _broken_off(error: Any) -> Exception:
    said = error.get("message", error) if isinstance(error, dict) else error
    if "JSON compliant" in str(said):
        return NotFinite()
    return EngineLost(f"the engine broke off: {json.dumps(said, default=str)[:300]}")
