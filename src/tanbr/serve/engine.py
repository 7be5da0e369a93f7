"""One dense model that answers, and the one way its weights change: `swap`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike

from tanbr.merge import Moe
from tanbr.moe.text import TextEncoder
from tanbr.types import Blend, FloatArray, Text, as_blend


class Engine:
    """Serves one blend of an MoE at a time. The experts stay on disk."""

    def __init__(self, moe: Moe, *, batch: int = 32, device: str | torch.device = "cpu") -> None:
        self.moe = moe
        self.version = 0  # merge version: how many blends have been swapped in
        self.blend: Blend | None = None
        self._batch = batch
        self._model = moe.dense().to(device).eval()
        self._encode = TextEncoder.of(Path(moe.path), vocab_size=self._model.config.vocab_size)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the head's columns."""
        names = self._model.config.id2label
        return tuple(names[column] for column in range(len(names)))

    def swap(self, blend: ArrayLike) -> int:
        """Merge the experts by `blend` (K,) into the served model; the merge version that now answers."""
        wanted = as_blend(blend, experts=self.moe.num_experts)
        if self.blend is None or not np.array_equal(wanted, self.blend):
            self.moe.merge_into(self._model, wanted)
            self.blend = wanted
            self.version += 1
        return self.version

    @torch.inference_mode()
    def logits(self, texts: Sequence[Text]) -> FloatArray:
        """Answer texts: (n, columns). Texts of like length share a batch, so that little is padding."""
        order = sorted(range(len(texts)), key=lambda i: len("".join(texts[i])))
        answers = np.empty((len(texts), len(self.columns)))
        for start in range(0, len(order), self._batch):
            chunk = order[start : start + self._batch]
            inputs = {
                name: value.to(self._model.device) for name, value in self._encode([texts[i] for i in chunk]).items()
            }
            answers[chunk] = self._model(**inputs).logits.double().cpu().numpy()
        return answers
