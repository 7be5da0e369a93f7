"""Merges that engines run: blends are written where an engine can read them, requests go to it over HTTP as they are.

Weights in an engine have a label, and nobody hears a token of an answer that did not come from the right ones. If an
engine does not answer, or lacks what it was given, it is *lost*: requests fail at once, and a thread waits for it to
come back and loads what answered last.
"""

import json
import logging
import math
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from typing import Any, Self

import numpy as np

from tanbr.engines.connection import LOAD_SECONDS, TRACED, EngineError, EngineLost, EngineRefused
from tanbr.engines.dialect import OURS, Dialect, Merge, check_same
from tanbr.engines.merge_files import MergeFiles
from tanbr.errors import CheckpointError, TanbrError
from tanbr.merge import Moe
from tanbr.moe.text import TextEncoder
from tanbr.serve.backends import Backend, Size
from tanbr.serve.decode import NotFinite
from tanbr.serve.records import EngineAnswer
from tanbr.types import Blend

log = logging.getLogger("tanbr.serve")

LOOK_SECONDS = 5.0  # between two looks at an engine that answers
LOST_SECONDS = 0.5  # … and at one that does not
CLOSE_SECONDS = 5.0  # that a load, or an engine that hangs, may keep us from leaving: a server has 30 to stop
WRITE = "/v1/completions"
ONE_TOKEN = {"prompt": [0], "max_tokens": 1, "temperature": 0, "logprobs": 1}
NAN = "JSON compliant"  # how Python refuses to write it
OWN = (401, 403)  # what an engine says to our own key: the client cannot mend it


class Host:
    """One engine, which must run the same model, and the merges that it is to hold."""

    def __init__(
        self, engine: Dialect, encode: TextEncoder, *, models: int = 1, most: int = 1, folder: str | None = None
    ) -> None:
        """Take over an engine that is to hold a panel of `models`; what it has stays until the first merge."""
        self.engine, self._encode = engine, encode
        self.positions = check_same(engine, encode).positions
        engine.call(engine.fits(models=models, most=most))
        count = 3 * models if engine.many else 2  # what answers, what answered before, what comes; or what is loaded
        self.files = MergeFiles(engine.room, count=count, folder=folder)  # after all checks: nothing is left
        self.places: list[Remote] = []
        self.why = ""  # why the engine is lost; empty while it is not
        self.changing = threading.Lock()  # one load at a time
        self.wakes, self._ends = threading.Event(), threading.Event()
        threading.Thread(target=self._watch, name="tanbr-engine-watch", daemon=True).start()

    @property
    def wanted(self) -> list[Merge]:
        """What answers, or is to answer when the engine is back."""
        return [one.wanted for one in self.places if one.wanted is not None]

    def close(self) -> None:
        """Let the engine go; it keeps what it has loaded, unless it may have to read that again."""
        if self._ends.is_set():
            return
        self._ends.set()
        self.wakes.set()
        if self.changing.acquire(timeout=CLOSE_SECONDS):
            with suppress(TanbrError, TimeoutError):
                for one in self.wanted:
                    self.engine.start(self.engine.unload(one)).result(CLOSE_SECONDS)
            self.changing.release()
        self.engine.close()  # ends what hangs
        self.files.close()

    def write(self, blend: Blend, *, share: float) -> Merge:
        """Write a blend (K,) where the engine will read it."""
        started, merge = time.perf_counter(), Merge(f"{OURS}{secrets.token_hex(12)}", blend, self.files.new())
        self.engine.write(merge, share=share)
        log.info("a merge was written in %.3f s", time.perf_counter() - started)
        return merge

    def load(self, merge: Merge, *, new: bool = False) -> None:
        """Load a merge; where several are held, only if the engine has it not. A `new` one must answer with numbers."""
        engine, started = self.engine, time.perf_counter()
        if not engine.many or merge.label not in engine.call(engine.held()):
            engine.call(engine.load(merge))
            if merge.label not in engine.call(engine.held()):
                raise EngineLost("it does not hold the weights that it was given")
        if new:
            self._try_out(merge)
        log.info("%s: loaded in %.3f s", merge.label, time.perf_counter() - started)

    def _try_out(self, merge: Merge) -> None:
        """Have a new merge answer with numbers, before anybody is answered with it.

        One token alone: vLLM's CPU kernels let NaN that a longer prompt leaves behind reach later answers.
        """
        engine = self.engine
        try:  # an engine may compile what it needs for its first adapter
            asked = engine.asked(ONE_TOKEN, merge.label)
            (choice,) = engine.call(engine.ask("POST", WRITE, asked, seconds=LOAD_SECONDS))["choices"]
            logprobs = choice["logprobs"]
            said = logprobs.get("token_logprobs") or [one["logprob"] for one in logprobs["content"]]
        except EngineRefused as error:
            raise (NotFinite() if NAN in error.said else error) from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EngineLost(f"it answers as no engine does ({type(error).__name__}: {error})") from None
        if any(value is None or not math.isfinite(value) for value in said):
            raise NotFinite

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
                    self._look(self.wanted)
            if self.wakes.is_set():  # it is lost: do not ask too often
                self._ends.wait(LOST_SECONDS)

    def _look(self, wanted: Sequence[Merge]) -> None:
        """Check that the engine has the wanted merges, and load them if it has lost some."""
        try:
            if not self.why:
                held = self.engine.call(self.engine.held()) if wanted else ()
                missing = [one.label for one in wanted if one.label not in held]
                if not missing:
                    return
                self.lose(f"it holds {', '.join(held) or 'nothing'} instead of {missing[0]}")
            check_same(self.engine, self._encode)
            for one in wanted:
                self.load(one)
            self.why = ""
            log.warning("the engine at %s is back, with what answered last", self.engine.url)
        except TanbrError as error:
            self.lose(str(error))


class Remote(Backend):
    """One merge in an engine: one of several, or the only one. The engine makes batches of what it is asked."""

    writes, causal, relays, asked_when_loaded = True, True, True, True

    def __init__(self, hosts: Sequence[Host]) -> None:
        """Take a place in the engine that holds fewest."""
        self._hosts, self._host = hosts, min(hosts, key=lambda host: len(host.places))
        if self._host.places and not self._host.engine.many:
            raise CheckpointError(
                f"{len(hosts)} engines hold {len(hosts)} whole models; give --engine-url once for each"
            )
        self.positions, self.many = self._host.positions, self._host.engine.many
        self.wanted: Merge | None = None  # what answers, or is to answer when the engine is back
        self._written: list[Merge] = []
        self._host.places.append(self)

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
        return (self.wanted.label, str(self.wanted.folder)) if self.wanted is not None and self.many else None

    @property
    def size(self) -> Size:
        """What the engine holds, and what a blend changes of it, which takes shared memory, too."""
        engine, plan = self._host.engine, self._host.engine.moe.plan
        parameters = sum(math.prod(shape) for shape in plan.shapes.values())
        return Size(parameters, sum(tensor.nbytes for tensor in plan.specs.values()), engine.room)

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

    def stage(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:  # noqa: ARG002
        """Write a blend (K,) where the engine will read it; requests go on meanwhile."""
        self._merge_of(blend, share)

    def _merge_of(self, blend: Blend, share: float) -> Merge:
        """Find the merge of a blend (K,), or write it in place of all that do not answer."""
        found = next((one for one in self._written if np.array_equal(one.blend, blend)), None)
        if found is None:
            for one in self._written:
                if one is not self.wanted:
                    shutil.rmtree(one.folder, ignore_errors=True)
            self._written = [one for one in self._written if one is self.wanted]
            found = self._host.write(blend, share=share)
            self._written.append(found)
        return found

    def merge(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:  # noqa: ARG002
        """Have the engine load a blend (K,); if it cannot, a whole model comes back with what answered before."""
        host, engine, old = self._host, self._host.engine, self.wanted
        if self.many and old is not None:
            with host.changing:
                self.wanted = None  # nobody is answered with it, and its folder may go
                self._try(lambda: engine.call(engine.unload(old)))
        new = self._merge_of(blend, share)
        with host.changing:
            if new is old:
                with suppress(CheckpointError):  # it answered before, and will when the engine is back
                    self._try(lambda: host.load(new))
            else:
                self._try(lambda: host.load(new, new=True))
            self.wanted = new

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
            asked, confirmed = engine.asked(body, loaded.label), False
            try:
                async with engine.turn(loaded.label), aclosing(engine.events(path, asked)) as said:
                    async for event in said:
                        if "error" in event:
                            raise _broken_off(event["error"])
                        if not confirmed:
                            await engine.confirm(event, loaded.label)
                        confirmed = True
                        hear(event)
                return
            except EngineError as error:
                lost = self._meaning(error, asked)
            except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
                lost = EngineLost(f"the engine answers as no engine does ({type(error).__name__}: {error})")
            if isinstance(lost, EngineLost):
                host.lose(str(lost))
            raise lost

        return engine.start(answered())

    def _meaning(self, error: EngineError, asked: Mapping[str, Any]) -> Exception:
        """Tell what is the client's to mend, and passed on, from an engine that is lost."""
        if error.status is None or error.status in OWN or error.status < 400:
            return EngineLost(str(error))
        if NAN in error.said:
            return NotFinite()
        if error.status == 404 and str(asked.get("model", "")) in error.body:
            return EngineLost(f"it has no {asked['model']}")
        self._host.wakes.set()  # an engine that is dying may say so, too: look at it
        return EngineAnswer(error.status, error.body, error.said)


def _broken_off(error: Any) -> Exception:
    said = error.get("message", error) if isinstance(error, dict) else error
    if NAN in str(said):
        return NotFinite()
    return EngineLost(f"the engine broke off: {json.dumps(said, default=str)[:300]}")
