"""A BERT-MoE that answers the same texts under many blends, computing once what no blend changes.

Below the first FFN whose experts differ, a text's hidden states are the same for every blend: they are kept. Above the
last FFN only the first token is read, so the last layer computes no other. Both are exact up to rounding.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tanbr.lab.dense import DenseModel
from tanbr.merge import Moe
from tanbr.serve.backends.bert_pass import Packed, attended, embedded, ffn, head, upper
from tanbr.tasks.metrics import Answer, LabelSpace
from tanbr.types import FloatArray, Text


class Classifier(DenseModel):
    """Remembers the stem of every text it has met."""

    def __init__(self, moe: Moe, *, batch: int = 8) -> None:
        super().__init__(moe, batch=batch)
        self._layers = list(self.model.bert.encoder.layer)
        self._stems: dict[Text, Tensor] = {}  # (length, D) after the attention of layer `first`
        self.first = _first_that_differs(moe)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the head's columns."""
        names = self.model.config.id2label
        return tuple(names[column] for column in range(len(names)))

    def answers(self, texts: Sequence[Text]) -> list[Answer]:
        """Answer each text by its logits (columns,)."""
        return list(self.logits(texts))

    @torch.inference_mode()
    def logits(self, texts: Sequence[Text]) -> FloatArray:
        """Answer texts: (n, columns)."""
        self._meet(texts)
        stems = [self._stems[text] for text in texts]
        logits = np.empty((len(texts), len(self.columns)))
        for chunk in self.by_length([len(stem) for stem in stems]):
            logits[chunk] = self._upper([stems[i] for i in chunk]).cpu().double().numpy()
        return logits

    def _meet(self, texts: Sequence[Text]) -> None:
        new = list(dict.fromkeys(text for text in texts if text not in self._stems))
        for chunk in self.by_length([len("".join(text)) for text in new]):
            inputs = self.encode([new[i] for i in chunk], device=self.model.device)
            packed = Packed(inputs["attention_mask"])
            hidden = embedded(self.model.bert.embeddings, packed, inputs["input_ids"], inputs.get("token_type_ids"))
            for layer in self._layers[: self.first]:
                hidden = ffn(layer, attended(layer.attention, hidden, packed))
            hidden = attended(self._layers[self.first].attention, hidden, packed)
            stems = torch.split(hidden, inputs["attention_mask"].sum(dim=1).tolist())
            self._stems |= {new[i]: stem.clone() for i, stem in zip(chunk, stems, strict=True)}

    def _upper(self, stems: list[Tensor]) -> Tensor:
        lengths = torch.tensor([len(stem) for stem in stems])
        packed = Packed((torch.arange(int(lengths.max())) < lengths[:, None]).to(stems[0].device))
        layer, above = self._layers[self.first], self._layers[self.first + 1 :]
        if not above:
            return head(self.model, ffn(layer, torch.stack([stem[0] for stem in stems])))
        return upper(self.model, above, ffn(layer, torch.cat(stems)), packed)


class PlainClassifier(DenseModel):
    """Any model with a classification head, run as it is; its columns are put in the order of a label space."""

    def __init__(self, moe: Moe, space: LabelSpace, *, batch: int = 8) -> None:
        super().__init__(moe, batch=batch)
        names = self.model.config.id2label
        head = tuple(names[column] for column in range(len(names)))
        fits = sorted(head) == sorted(space.columns)
        self.columns = space.columns if fits else head
        self._order = [head.index(name) for name in self.columns]

    @torch.inference_mode()
    def answers(self, texts: Sequence[Text]) -> list[Answer]:
        """Answer each text by its logits (columns,)."""
        logits = np.empty((len(texts), len(self.columns)))
        for chunk in self.by_length([len("".join(text)) for text in texts]):
            inputs = self.encode([texts[i] for i in chunk], device=self.model.device)
            logits[chunk] = self.model(**inputs).logits[:, self._order].cpu().double().numpy()
        return list(logits)


def _first_that_differs(moe: Moe) -> int:
    """Find the lowest layer whose experts are not all equal."""
    differing = [piece.target for piece in moe.plan.blended if moe.experts.differ(piece)]
    return min((int(target.split("encoder.layer.")[1].split(".")[0]) for target in differing), default=0)
