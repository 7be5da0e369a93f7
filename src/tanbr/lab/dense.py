"""One dense model of an MoE that answers the same texts under many blends."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from tanbr.errors import CheckpointError
from tanbr.merge import Moe
from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.text import TextEncoder
from tanbr.tasks.metrics import Answer
from tanbr.types import Blend, Text, as_blend


def with_start(model: Any) -> Any:
    """Let a decoder that names no first token start with padding, as T5 does."""
    if model.config.is_encoder_decoder:
        for settings in (model.config, model.generation_config):
            if getattr(settings, "decoder_start_token_id", None) is None:
                settings.decoder_start_token_id = model.config.pad_token_id or 0
    return model


class DenseModel(ABC):
    """Holds one blend at a time, or another merge of the same experts."""

    def __init__(self, moe: Moe, *, batch: int) -> None:
        self.moe, self.batch = moe, batch
        self.model: Any = with_start(moe.dense())
        self.encode = TextEncoder.of(moe.path, vocab_size=self.model.config.vocab_size)
        self.blend: Blend | None = None

    def swap(self, blend: ArrayLike) -> None:
        """Merge the experts by `blend` (K,)."""
        wanted = as_blend(blend, experts=self.moe.num_experts)
        if self.blend is None or not np.array_equal(wanted, self.blend):
            self.blend = None  # an exception on the way leaves the model in doubt
            self.moe.merge_into(self.model, wanted)
            self.blend = wanted

    @torch.no_grad()
    def put(self, merged: nn.Module) -> None:
        """Take over another merge of the same MoE, one that is no blend: its FFNs are copied."""
        self.blend = None
        for piece in self.moe.plan.blended:
            self.model.get_parameter(piece.target).copy_(merged.get_parameter(piece.target))

    @torch.no_grad()
    def become(self, folder: Path) -> None:
        """Take over all weights of a dense checkpoint of the same architecture, before the first answer."""
        given, own = Checkpoint(folder), dict(self.model.named_parameters())
        fits = [name in given.specs and given.specs[name].shape == weight.shape for name, weight in own.items()]
        odd = [name for name, fit in zip(own, fits, strict=True) if not fit]
        odd += sorted(given.specs.keys() - self.model.state_dict().keys())
        if odd:
            raise CheckpointError(f"{folder} is not built like the merged {self.moe.path}: {odd[0]} does not fit")
        labels = given.config.get("id2label") or {}
        if labels and list(labels.values()) != list(self.model.config.id2label.values()):
            raise CheckpointError(f"{folder} answers other labels than {self.moe.path}, or in another order")
        for name, weight in own.items():
            weight.copy_(given.tensor(name))
        self.blend = None

    @abstractmethod
    def answers(self, texts: Sequence[Text]) -> list[Answer]:
        """Answer texts, each as `LabelSpace.read` understands it."""

    def by_length(self, lengths: Sequence[int]) -> list[list[int]]:
        """Put texts of like length into one batch, so that little is padding: their indices, batch by batch."""
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        return [order[start : start + self.batch] for start in range(0, len(order), self.batch)]
