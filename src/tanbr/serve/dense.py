"""One dense model that answers texts in this process, blend after blend: what checks and comparisons ask."""

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
from tanbr.moe.text import Inputs, TextEncoder
from tanbr.serve.backends.choose import Precision
from tanbr.serve.backends.torch_eager import TorchEager, lowered
from tanbr.tasks import text_to_text
from tanbr.tasks.metrics import Answer, LabelSpace
from tanbr.types import Blend, Text, as_blend

BATCH = 32  # texts that are answered at a time


def with_start(model: Any) -> Any:
    """Let a decoder that names no first token start with padding, as T5 does."""
    if model.config.is_encoder_decoder:
        for settings in (model.config, model.generation_config):
            if getattr(settings, "decoder_start_token_id", None) is None:
                settings.decoder_start_token_id = model.config.pad_token_id or 0
    return model


class DenseModel:
    """One dense model that answers in a label space, by a head with its columns or in words; one blend at a time."""

    def __init__(self, moe: Moe, space: LabelSpace, *, precision: Precision = "fp32") -> None:
        self.moe, self.space = moe, space
        self.model: Any = lowered(with_start(moe.dense()), moe, precision)
        self.encode = TextEncoder.of(moe.path, vocab_size=self.model.config.vocab_size)
        self.blend: Blend | None = None
        self.writes = bool(self.model.config.is_encoder_decoder)
        if self.writes:
            wanted = [answer for task in space.tasks for answer in text_to_text.answers(task)]
            self.longest = max(len(ids) for ids in self.encode.tokenizer(wanted)["input_ids"])
            return
        if not str(moe.config["architectures"][0]).endswith("ForSequenceClassification"):
            raise CheckpointError(
                f"{moe.path} is a {moe.family.model_type} model; answers are compared of models with a head (BERT-MoE) "
                "and of encoder-decoders (T5-MoE)"
            )
        self._backend = TorchEager(self.model, {})
        head = self._backend.columns
        if sorted(head) != sorted(space.columns):
            raise CheckpointError(
                f"{moe.path} answers {', '.join(head[:8])}, but the data's labels are "
                f"{', '.join(space.columns)}; pass the data it was trained on (--data), or another checkpoint"
            )
        self._order = [head.index(name) for name in space.columns]

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
        odd = [n for n, w in own.items() if n not in given.specs or given.specs[n].shape != w.shape]
        odd += sorted(given.specs.keys() - self.model.state_dict().keys())
        if odd:
            raise CheckpointError(f"{folder} is not built like the merged {self.moe.path}: {odd[0]} does not fit")
        labels = given.config.get("id2label") or {}
        if labels and list(labels.values()) != list(self.model.config.id2label.values()):
            raise CheckpointError(f"{folder} answers other labels than {self.moe.path}, or in another order")
        for name, weight in own.items():
            weight.copy_(given.tensor(name))
        self.blend = None

    @torch.inference_mode()
    def answers(self, texts: Sequence[Text]) -> list[Answer]:
        """Answer each text: logits (columns,), or what is written. Texts of like length share a batch."""
        order = sorted(range(len(texts)), key=lambda i: len("".join(texts[i])))
        found: dict[int, Answer] = {}
        for start in range(0, len(order), BATCH):
            chunk = order[start : start + BATCH]
            inputs = self.encode.pad(self.encode.encode([texts[i] for i in chunk]).columns)
            given = self._written(inputs) if self.writes else self._backend.classify(inputs)[:, self._order]
            found |= zip(chunk, given, strict=True)
        return [found[i] for i in range(len(texts))]

    def _written(self, inputs: Inputs) -> list[str]:
        names = ("input_ids", "attention_mask")
        tensors = {name: torch.from_numpy(inputs[name]).to(self.model.device) for name in names}
        tokens = self.model.generate(**tensors, max_new_tokens=self.longest, do_sample=False)
        texts: list[str] = self.encode.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return texts
