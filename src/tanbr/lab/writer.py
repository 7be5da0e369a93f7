"""A T5-MoE (or another encoder-decoder) that writes its answers under many blends."""

from collections.abc import Sequence

import torch

from tanbr.errors import CheckpointError
from tanbr.lab.dense import DenseModel
from tanbr.merge import Moe
from tanbr.tasks import text_to_text
from tanbr.tasks.metrics import Answer, LabelSpace
from tanbr.types import Text


class Writer(DenseModel):
    """Writes greedily, no more tokens than the longest answer in the label space has."""

    def __init__(self, moe: Moe, space: LabelSpace, *, batch: int = 32) -> None:
        super().__init__(moe, batch=batch)
        if not self.model.config.is_encoder_decoder:
            raise CheckpointError(
                f"{moe.path} is a {moe.family.model_type} model; answers are compared of models with a head (BERT-MoE) "
                "and of encoder-decoders (T5-MoE)"
            )
        wanted = [answer for task in space.tasks for answer in text_to_text.answers(task)]
        self.longest = max(len(ids) for ids in self.encode.tokenizer(wanted)["input_ids"])

    @torch.inference_mode()
    def answers(self, texts: Sequence[Text]) -> list[Answer]:
        """Write an answer to each text."""
        written: list[Answer] = [""] * len(texts)
        for chunk in self.by_length([len("".join(text)) for text in texts]):
            encoded = self.encode([texts[i] for i in chunk], device=self.model.device)
            inputs = {name: encoded[name] for name in ("input_ids", "attention_mask")}
            tokens = self.model.generate(**inputs, max_new_tokens=self.longest, do_sample=False)
            decoded = self.encode.tokenizer.batch_decode(tokens, skip_special_tokens=True)
            for i, text in zip(chunk, decoded, strict=True):
                written[i] = text
        return written
