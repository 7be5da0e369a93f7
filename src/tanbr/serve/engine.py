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
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike

from tanbr.errors import CheckpointError
from tanbr.merge import Moe
from tanbr.merge.int8 import Int8Loss
from tanbr.moe.text import TextEncoder
from tanbr.serve.buffer import Buffer, float_buffer, int8_buffer
from tanbr.serve.watch import FileWatch
from tanbr.types import Blend, FloatArray, Text, as_blend


@dataclass(frozen=True, eq=False)
class Live:
    """What answers: a buffer, the version of the blend in it, and the slot that its answers are credited to."""

    buffer: Buffer = field(repr=False)
    version: int
    blend: Blend | None  # (K,); None before the first swap
    slot: int = 0

    @property
    def model(self) -> Any:
        """The dense transformers model."""
        return self.buffer.model


@dataclass(frozen=True, eq=False)
class Staged:
    """A blend that is ready to answer and does not yet."""

    buffer: Buffer | None = field(repr=False)  # that holds it; None where it will be merged in place
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
        device: str | torch.device = "cpu",
        blend: ArrayLike | None = None,
        version: int = 0,
        issued: int = 0,
        slot: int = 0,
        spare: bool = False,
        precision: Literal["fp32", "int8"] = "fp32",
        probes: Sequence[Text] = (),
        int8_agreement: float = 0.98,
        max_length: int = 128,
        merge_share: float = 1.0,
    ) -> None:
        self.moe = moe
        self.int8_loss: Int8Loss | None = None
        self.merge_seconds = 0.0  # of the last merge
        self.pause_seconds = 0.0  # for which the last swap kept batches waiting
        self._batch, self._merge_share = batch, merge_share
        model = moe.dense(blend).to(device).eval()
        self.encode = TextEncoder.of(Path(moe.path), vocab_size=model.config.vocab_size, max_length=max_length)
        if precision == "int8":
            buffer, self.int8_loss = int8_buffer(
                model, moe, lambda: [self.encode(probes)] if probes else [], least_agreement=int8_agreement
            )
        else:
            buffer = float_buffer(model, moe)
        known = None if blend is None else as_blend(blend, experts=moe.num_experts)
        self._live = Live(buffer, version, known, slot)
        self._spare: Live | None = replace(self._live, buffer=buffer.twin(moe), blend=None) if spare else None
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
        names = self._live.model.config.id2label
        return tuple(names[column] for column in range(len(names)))

    @property
    def writes(self) -> bool:
        """Whether the model writes text; otherwise it classifies."""
        return bool(self._live.model.can_generate())

    @contextmanager
    def using(self) -> Iterator[Live]:
        """Hold what answers: no merge touches it until the block ends, though another may take over meanwhile."""
        with self._idle:
            self._idle.wait_for(lambda: not self._paused)
            if self._fault:
                raise CheckpointError(f"{self._fault}; put the checkpoint right and restart")
            live = self._live
            live.buffer.readers += 1
        try:
            yield live
        finally:
            with self._idle:
                live.buffer.readers -= 1
                self._idle.notify_all()

    def prepare(self, blend: ArrayLike, *, version: int | None = None) -> Staged:
        """Make the merge of `blend` (K,) ready to answer; nothing else changes until `commit`.

        `version` numbers a blend that had a number before. One thread at a time may prepare, and what is prepared is
        committed or discarded before the next is. If it fails, the old blend goes on answering.
        """
        wanted = as_blend(blend, experts=self.moe.num_experts)
        live = self._live
        if live.blend is not None and not self._fault and np.array_equal(wanted, live.blend):
            return self._stage(Staged(live.buffer, live.version, live.blend, changed=False))
        number = self._issued + 1 if version is None else version
        if self._spare is None:
            self.files.check()
            self.moe.check(wanted)
            return self._stage(Staged(None, number, wanted, changed=True))
        with self._idle:
            spare = self._spare
            held = spare.blend is not None and np.array_equal(wanted, spare.blend)
            if not held:
                self._idle.wait_for(lambda: spare.buffer.readers == 0)
                self._spare = replace(spare, blend=None)  # nobody can go back to it from here on
        if not held:
            self._merge(spare.buffer, wanted, share=self._merge_share)
        return self._stage(Staged(spare.buffer, number, wanted, changed=True))

    def commit(self, staged: Staged, *, slot: int | None = None) -> Live:
        """Let what was prepared answer every batch from now on, credited to `slot`; what answers now.

        Without a spare this merges, and may fail: then the old blend answers as before.
        """
        if staged is not self._staged:
            raise RuntimeError("only what was prepared last can be committed, and only once")
        self._staged = None
        slot = self._live.slot if slot is None else slot
        if staged.buffer is None:
            with self._paused_for(staged) as buffer:
                self._live, self._fault = Live(buffer, staged.version, staged.blend, slot), ""
        else:
            started = time.perf_counter()
            with self._idle:
                old = self._live
                if not staged.changed and (old.buffer, old.version) != (staged.buffer, staged.version):
                    raise CheckpointError(f"merge version {staged.version} was found broken before it was committed")
                self._live = Live(staged.buffer, staged.version, staged.blend, slot)
                if old.buffer is not staged.buffer:
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
            if self._live.buffer is broken.buffer and self._live.version == broken.version:
                if self.held is None or self._spare is None:
                    return None
                self._live, self._spare = self._spare, replace(self._live, blend=None)
            return self._live

    @torch.inference_mode()
    def logits(self, texts: Sequence[Text], *, live: Live | Staged | None = None) -> FloatArray:
        """Answer texts: (n, columns), by default with what answers now.

        Texts of like length share a batch, so that little is padding.
        """
        with self._model_of(live) as model:
            return self._logits(texts, model)

    def _logits(self, texts: Sequence[Text], model: Any) -> FloatArray:
        order = sorted(range(len(texts)), key=lambda i: len("".join(texts[i])))
        answers = np.empty((len(texts), len(self.columns)))
        for start in range(0, len(order), self._batch):
            chunk = order[start : start + self._batch]
            inputs = {name: value.to(model.device) for name, value in self.encode([texts[i] for i in chunk]).items()}
            answers[chunk] = model(**inputs).logits.double().cpu().numpy()
        return answers

    @torch.inference_mode()
    def sane(self, text: Text, live: Live | Staged) -> bool:
        """Whether a model answers a text with numbers, be it a label or the first token of an answer."""
        with self._model_of(live) as model:
            inputs = {name: value.to(model.device) for name, value in self.encode([text]).items()}
            if model.config.is_encoder_decoder:
                inputs["decoder_input_ids"] = inputs["input_ids"][:, :1]
            return bool(torch.isfinite(model(**inputs).logits).all())

    @contextmanager
    def _model_of(self, live: Live | Staged | None) -> Iterator[Any]:
        """Hold the model of what answers, or of what was prepared; merged in place for the while if need be."""
        if live is None:
            with self.using() as current:
                yield current.model
        elif live.buffer is None:
            with self._borrowed(live) as buffer:
                yield buffer.model
        else:
            yield live.buffer.model

    @contextmanager
    def _borrowed(self, staged: Staged) -> Iterator[Buffer]:
        """Merge in place to look it over, and merge the old blend back at the end."""
        with self._paused_for(staged) as buffer:
            yield buffer
            self._restore()

    @contextmanager
    def _paused_for(self, staged: Staged) -> Iterator[Buffer]:
        """Merge in place; requests wait until the block ends, and if it raises the old blend is back."""
        started = time.perf_counter()
        self.files.check()  # before anything is overwritten: the old blend must come from the same files
        with self._idle:
            self._paused = True
            self._idle.wait_for(lambda: self._live.buffer.readers == 0)
        try:
            self._merge(self._live.buffer, staged.blend, share=1.0)
            yield self._live.buffer
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
        self._live.buffer.merge(self.moe, self.moe.check(self._live.blend))
        self._fault = ""

    def _merge(self, buffer: Buffer, blend: Blend, *, share: float) -> None:
        started = time.perf_counter()
        self.files.check()
        self.moe.check(blend)
        buffer.merge(self.moe, blend, share=share)
        self.merge_seconds = time.perf_counter() - started

    def _stage(self, staged: Staged) -> Staged:
        self._staged = staged
        return staged
