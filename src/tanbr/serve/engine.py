"""The dense model that answers, and the one way its weights change: `prepare`, look it over, write it down, `commit`.

With a spare buffer the next blend is merged beside the one that answers, and takes over by one pointer: a commit
cannot fail for want of a file. Without a spare there is only one place to merge into: `prepare` checks what can be
checked, whoever looks the blend over borrows the place (merge, answer, merge the old blend back), and `commit` merges
in place. Requests wait meanwhile, but for nothing else: nothing is written while they do. Such a commit may fail after
the learner has written: the old blend is back then and goes on answering, and the learner has to write that down.

Who answers holds the pointer for the whole batch: one batch, one merge version.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from tanbr.errors import CheckpointError, ConfigError
from tanbr.merge import Moe
from tanbr.moe.text import Inputs, TextEncoder
from tanbr.serve.backends import BACKENDS, Backend
from tanbr.serve.decode import NotFinite
from tanbr.serve.watch import FileWatch
from tanbr.tasks import tiny
from tanbr.types import Blend, FloatArray, Text, as_blend

SENTENCES, SENTENCE_SEED = 8, 4_000  # of each generated task, to measure a backend on


@dataclass(frozen=True, eq=False)
class Live:
    """What answers: a backend, the version of the blend in it, and the slot that its answers are credited to."""

    backend: Backend = field(repr=False)
    version: int
    blend: Blend | None  # (K,); None before the first swap
    slot: int = 0


@dataclass(frozen=True, eq=False)
class Staged:
    """A blend that is ready to answer and does not yet."""

    backend: Backend | None = field(repr=False)  # that holds it; None where it will be merged in place
    version: int
    blend: Blend  # (K,)
    changed: bool  # False: this blend answers already


class Engine:
    """Serves one blend of an MoE at a time. The experts stay on disk."""

    def __init__(
        self,
        moe: Moe,
        *,
        batch: int = 32,
        backend: str = "torch",
        device: str = "cpu",
        blend: ArrayLike | None = None,
        version: int = 0,
        issued: int = 0,
        slot: int = 0,
        spare: bool = False,
        probes: Sequence[Text] = (),
        least_agreement: float = 0.98,
        max_length: int | None = None,
        merge_share: float = 1.0,
    ) -> None:
        """Merge the first blend (K,) (all experts alike if None) into a backend of `serve.backends`.

        A backend that does not compute in float32 is measured on the `probes`, or without any on sentences of ours.
        """
        self.moe = moe
        self.merge_seconds = 0.0  # of the last merge
        self.pause_seconds = 0.0  # for which the last swap kept batches waiting
        self._batch, self._merge_share = batch, merge_share
        if backend not in BACKENDS:
            raise ConfigError(f"unknown backend {backend!r}; choose one of {', '.join(BACKENDS)}")
        self.encode = TextEncoder.of(moe.path, vocab_size=moe.config["vocab_size"], max_length=max_length)
        self._left = moe.plan.config().architectures[0].endswith("ForCausalLM")
        known = None if blend is None else as_blend(blend, experts=moe.num_experts)
        first = BACKENDS[backend](
            moe,
            blend=known,
            device=device,
            probes=lambda: self._padded(list(probes) or sentences()),
            least_agreement=least_agreement,
        )
        self._live = Live(first, version, known, slot)
        self._spare: Live | None = replace(self._live, backend=first.twin(moe), blend=None) if spare else None
        self._issued = max(version, issued)  # highest version number in use
        self._idle = threading.Condition()  # guards the pointer and the readers
        self._paused = False
        self._fault = ""  # why nothing can answer: a merge in place failed, and so did merging the old blend back
        self._staged: Staged | None = None
        self.files = FileWatch(moe.files)
        moe.release()

    @property
    def live(self) -> Live:
        """What answers at the moment."""
        return self._live

    @property
    def version(self) -> int:
        """Merge version that answers: how many blends had been merged when this one was."""
        return self._live.version

    @property
    def blend(self) -> Blend | None:
        """Blend (K,) that answers; None before the first swap."""
        return self._live.blend

    @property
    def held(self) -> Live | None:
        """The version that can be had back without a merge."""
        return self._spare if self._spare is not None and self._spare.blend is not None else None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the head's columns."""
        return self._live.backend.columns

    @property
    def writes(self) -> bool:
        """Whether the model writes text; otherwise it classifies."""
        return self._live.backend.writes

    def faults(self) -> tuple[str, ...]:
        """Say why nothing can answer; nothing if something can."""
        return (self._fault,) if self._fault else ()

    @contextmanager
    def using(self) -> Iterator[Live]:
        """Hold what answers: no merge touches it until the block ends, though another may take over meanwhile."""
        with self._idle:
            self._idle.wait_for(lambda: not self._paused)
            if self._fault:
                raise CheckpointError(f"{self._fault}; put the checkpoint right and restart")
            live = self._live
            live.backend.readers += 1
        try:
            yield live
        finally:
            with self._idle:
                live.backend.readers -= 1
                self._idle.notify_all()

    def prepare(self, blend: ArrayLike, *, version: int | None = None) -> Staged:
        """Make the merge of `blend` (K,) ready to answer; nothing else changes until `commit`.

        `version` numbers a blend that had a number before. One thread at a time may prepare, and what is prepared is
        committed or discarded before the next is. If it fails, the old blend goes on answering.
        """
        wanted = as_blend(blend, experts=self.moe.num_experts)
        live = self._live
        if live.blend is not None and not self._fault and np.array_equal(wanted, live.blend):
            return self._stage(Staged(live.backend, live.version, live.blend, changed=False))
        number = self._issued + 1 if version is None else version
        if self._spare is None:
            self.files.check()
            self.moe.check(wanted)
            return self._stage(Staged(None, number, wanted, changed=True))
        with self._idle:
            spare = self._spare
            held = spare.blend is not None and np.array_equal(wanted, spare.blend)
            if not held:
                self._idle.wait_for(lambda: spare.backend.readers == 0)
                self._spare = replace(spare, blend=None)  # nobody can go back to it from here on
        if not held:
            self._merge(spare.backend, wanted, share=self._merge_share)
        return self._stage(Staged(spare.backend, number, wanted, changed=True))

    def commit(self, staged: Staged, *, slot: int | None = None) -> Live:
        """Let what was prepared answer every batch from now on, credited to `slot`; what answers now.

        Without a spare this merges, and may fail: then the old blend answers as before.
        """
        if staged is not self._staged:
            raise RuntimeError("only what was prepared last can be committed, and only once")
        self._staged = None
        slot = self._live.slot if slot is None else slot
        if staged.backend is None:
            with self._paused_for(staged) as backend:
                self._live, self._fault = Live(backend, staged.version, staged.blend, slot), ""
        else:
            started = time.perf_counter()
            with self._idle:
                old = self._live
                if not staged.changed and (old.backend, old.version) != (staged.backend, staged.version):
                    raise CheckpointError(f"merge version {staged.version} was found broken before it was committed")
                self._live = Live(staged.backend, staged.version, staged.blend, slot)
                if old.backend is not staged.backend:
                    self._spare = old
            self.pause_seconds = time.perf_counter() - started
        self._issued = max(self._issued, staged.version)
        return self._live

    def discard(self, staged: Staged) -> None:
        """Forget what was prepared: nothing happened."""
        if staged is self._staged:
            self._staged = None

    def swap(self, blend: ArrayLike, *, version: int | None = None, slot: int | None = None) -> int:
        """Prepare a blend (K,) and commit it unseen; the merge version that now answers."""
        return self.commit(self.prepare(blend, version=version), slot=slot).version

    def revert(self, broken: Live) -> Live | None:
        """Go back at once to what answered before `broken`, if that is still in a buffer; what answers now."""
        with self._idle:
            if self._live.backend is broken.backend and self._live.version == broken.version:
                if self.held is None or self._spare is None:
                    return None
                self._live, self._spare = self._spare, replace(self._live, blend=None)
            return self._live

    def logits(self, texts: Sequence[Text], *, live: Live | Staged | None = None) -> FloatArray:
        """Classify texts: (n, columns), by default with what answers now.

        Texts of like length share a batch, so that little is padding.
        """
        logits = np.empty((len(texts), len(self.columns)))
        with self._held(live) as backend:
            for chunk in self._chunks(texts):
                logits[chunk] = backend.classify(self._padded([texts[i] for i in chunk])[0])
        return logits

    def texts(self, prompts: Sequence[Text], *, max_tokens: int, live: Live | Staged | None = None) -> list[str]:
        """Write an answer of at most `max_tokens` tokens to each prompt, by default with what answers now."""
        written = [""] * len(prompts)
        with self._held(live) as backend:
            for chunk in self._chunks(prompts):
                inputs = self._padded([prompts[i] for i in chunk])[0]
                done = backend.generate(inputs, limits=[max_tokens] * len(chunk), on_step=lambda _: ())
                for i, answer in zip(chunk, done, strict=True):
                    tokens = () if answer is None else answer.tokens
                    written[i] = str(self.encode.tokenizer.decode(list(tokens), skip_special_tokens=True))
        return written

    def sane(self, text: Text, live: Live | Staged) -> bool:
        """Whether a model answers a text with numbers, be it a label or the first token of an answer."""
        with self._held(live) as backend:
            inputs = self._padded([text])[0]
            if not backend.writes:
                return bool(np.isfinite(backend.classify(inputs)).all())
            try:
                backend.generate(inputs, limits=[1], on_step=lambda _: ())
            except NotFinite:
                return False
            return True

    def _chunks(self, texts: Sequence[Text]) -> list[list[int]]:
        order = sorted(range(len(texts)), key=lambda i: len("".join(texts[i])))
        return [order[start : start + self._batch] for start in range(0, len(order), self._batch)]

    def _padded(self, texts: Sequence[Text]) -> list[Inputs]:
        """Encode texts in the order given, a batch at a time."""
        parts = [texts[start : start + self._batch] for start in range(0, len(texts), self._batch)]
        return [self.encode.pad(self.encode.encode(part).columns, left=self._left) for part in parts]

    @contextmanager
    def _held(self, live: Live | Staged | None) -> Iterator[Backend]:
        """Hold what answers, or what was prepared; merged in place for the while if need be."""
        if live is None:
            with self.using() as current:
                yield current.backend
        elif live.backend is None:
            with self._borrowed(live) as backend:
                yield backend
        else:
            yield live.backend

    @contextmanager
    def _borrowed(self, staged: Staged) -> Iterator[Backend]:
        """Merge in place to look it over, and merge the old blend back at the end."""
        with self._paused_for(staged) as backend:
            yield backend
            self._restore()

    @contextmanager
    def _paused_for(self, staged: Staged) -> Iterator[Backend]:
        """Merge in place; requests wait until the block ends, and if it raises the old blend is back."""
        started = time.perf_counter()
        self.files.check()  # before anything is overwritten: the old blend must come from the same files
        with self._idle:
            self._paused = True
            self._idle.wait_for(lambda: self._live.backend.readers == 0)
        try:
            self._merge(self._live.backend, staged.blend, share=1.0)
            yield self._live.backend
        except BaseException:
            self._restore()
            raise
        finally:
            with self._idle:
                self._paused = False
                self._idle.notify_all()
            self.pause_seconds = time.perf_counter() - started

    def _restore(self) -> None:
        """Merge what answers into its buffer again."""
        self._fault = f"merge version {self._live.version} could not be restored after a merge in place that failed"
        self.files.check()
        self._live.backend.merge(self.moe, self.moe.check(self._live.blend))
        self._fault = ""

    def _merge(self, backend: Backend, blend: Blend, *, share: float) -> None:
        started = time.perf_counter()
        self.files.check()
        self.moe.check(blend)
        backend.merge(self.moe, blend, share=share)
        self.merge_seconds = time.perf_counter() - started

    def _stage(self, staged: Staged) -> Staged:
        self._staged = staged
        return staged


def sentences() -> list[Text]:
    """Give texts to measure a backend on where nobody gave any: those of the generated tasks."""
    return [row.text for task in tiny.TASKS for row in tiny.generate(task.name, SENTENCES, seed=SENTENCE_SEED)]
