"""The dense model that answers, and the one way its weights change: `swap`.

With a spare buffer the next blend is merged beside the one that answers and takes over by one pointer; without, it is
merged in place while requests wait. Who answers holds the pointer for the whole batch: one batch, one merge version.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
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
        self._stamps = [_stamp(file.path) for file in moe.files]
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
            live = self._live
            live.buffer.readers += 1
        try:
            yield live
        finally:
            with self._idle:
                live.buffer.readers -= 1
                self._idle.notify_all()

    def swap(
        self,
        blend: ArrayLike,
        *,
        version: int | None = None,
        slot: int | None = None,
        before: Callable[[Live], None] | None = None,
    ) -> int:
        """Merge the experts by `blend` (K,) and serve them; the merge version that now answers.

        `version` numbers a blend that had a number before. `before` sees what is about to answer; if it raises, as if
        the merge fails, the old blend goes on answering. One thread at a time may swap.
        """
        wanted = as_blend(blend, experts=self.moe.num_experts)
        slot = self._live.slot if slot is None else slot
        if self.blend is not None and np.array_equal(wanted, self.blend):
            return self._point(replace(self._live, slot=slot), before)
        number = self._issued + 1 if version is None else version
        if self._spare is None:
            return self._swap_in_place(wanted, number, slot, before)
        with self._idle:
            spare = self._spare
            self._idle.wait_for(lambda: spare.buffer.readers == 0)
        if spare.blend is None or not np.array_equal(wanted, spare.blend):
            self._spare = replace(spare, blend=None)
            self._merge(spare.buffer, wanted)
            self._spare = replace(spare, blend=wanted, version=number)
        return self._point(replace(self._spare, version=number, blend=wanted, slot=slot), before)

    def revert(self, broken: Live) -> Live | None:
        """Go back at once to what answered before `broken`, if that is still in a buffer; what answers now."""
        with self._idle:
            if self._live.buffer is broken.buffer and self._live.version == broken.version:
                if self.held is None or self._spare is None:
                    return None
                self._live, self._spare = self._spare, replace(self._live, blend=None)
            return self._live

    @torch.inference_mode()
    def logits(self, texts: Sequence[Text], *, live: Live | None = None) -> FloatArray:
        """Answer texts: (n, columns). Texts of like length share a batch, so that little is padding."""
        if live is None:
            with self.using() as current:
                return self.logits(texts, live=current)
        order = sorted(range(len(texts)), key=lambda i: len("".join(texts[i])))
        answers = np.empty((len(texts), len(self.columns)))
        for start in range(0, len(order), self._batch):
            chunk = order[start : start + self._batch]
            inputs = {
                name: value.to(live.model.device) for name, value in self.encode([texts[i] for i in chunk]).items()
            }
            answers[chunk] = live.model(**inputs).logits.double().cpu().numpy()
        return answers

    @torch.inference_mode()
    def sane(self, text: Text, live: Live) -> bool:
        """Whether a model answers a text with numbers, be it a label or the first token of an answer."""
        inputs = {name: value.to(live.model.device) for name, value in self.encode([text]).items()}
        if live.model.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = inputs["input_ids"][:, :1]
        return bool(torch.isfinite(live.model(**inputs).logits).all())

    def _swap_in_place(self, wanted: Blend, number: int, slot: int, before: Callable[[Live], None] | None) -> int:
        """Merge while requests wait; a failure merges the old blend again."""
        self._check_files()
        old = self._live
        self.moe.check(wanted)
        with self._idle:
            self._paused = True
            self._idle.wait_for(lambda: old.buffer.readers == 0)
        started = time.perf_counter()
        try:
            self._merge(old.buffer, wanted, share=1.0)
            return self._point(Live(old.buffer, number, wanted, slot), before)
        except BaseException:
            self._live = replace(old, blend=None)  # not what it says until the old blend is back
            old.buffer.merge(self.moe, self.moe.check(old.blend))
            self._live = old
            raise
        finally:
            with self._idle:
                self._paused = False
                self._idle.notify_all()
            self.pause_seconds = time.perf_counter() - started

    def _merge(self, buffer: Buffer, blend: Blend, *, share: float | None = None) -> None:
        started = time.perf_counter()
        self._check_files()
        self.moe.check(blend)
        buffer.merge(self.moe, blend, share=self._merge_share if share is None else share)
        self.merge_seconds = time.perf_counter() - started

    def _point(self, live: Live, before: Callable[[Live], None] | None) -> int:
        if before is not None:
            before(live)
        started = time.perf_counter()
        with self._idle:
            old, self._live = self._live, live
            if self._spare is not None and old.buffer is not live.buffer:
                self._spare = old
        if not self._paused:
            self.pause_seconds = time.perf_counter() - started
        self._issued = max(self._issued, live.version)
        return live.version

    def _check_files(self) -> None:
        """Refuse to read experts from files that have changed under the map: garbage, or past their end a crash."""
        for file, stamp in zip(self.moe.files, self._stamps, strict=True):
            if _stamp(file.path) != stamp:
                raise CheckpointError(f"{file.path} has changed since it was opened; put the old file back, or restart")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
