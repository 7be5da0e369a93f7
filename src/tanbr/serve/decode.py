"""Greedy decoding of a batch, for encoder-decoder and for causal models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tanbr.types import FloatArray

OnStep = Callable[[list[int | None]], None]  # the token added to each row; None for a row that had ended


@dataclass(frozen=True, eq=False)
class Decoded:
    """What a batch of n prompts was answered."""

    tokens: list[list[int]]  # without the token that ends an answer
    stopped: list[bool]  # whether the model ended it itself
    confidence: FloatArray  # (n,) mean probability of the tokens; NaN where the logits were not finite


@torch.inference_mode()
def decode(model: Any, inputs: Mapping[str, Tensor], *, limits: Sequence[int], on_step: OnStep) -> Decoded:
    """Write at most limits[i] tokens for row i of `inputs` (n, length), padded on the left for a causal model."""
    ends = _ends(model)
    step = _EncoderDecoder(model, inputs) if model.config.is_encoder_decoder else _Causal(model, inputs)
    n = len(limits)
    tokens: list[list[int]] = [[] for _ in range(n)]
    stopped = [False] * n
    total = np.zeros(n)
    open_rows = {row for row in range(n) if limits[row] > 0}
    chosen = step.first
    while open_rows:
        likely, chosen = step(chosen).float().softmax(dim=-1).max(dim=-1)  # (n,)
        added: list[int | None] = [None] * n
        values, chances = chosen.tolist(), likely.tolist()
        for row in sorted(open_rows):
            total[row] += chances[row]
            if values[row] in ends:
                stopped[row] = True
                open_rows.discard(row)
                continue
            tokens[row].append(values[row])
            added[row] = values[row]
            if len(tokens[row]) >= limits[row]:
                open_rows.discard(row)
        on_step(added)
    counts = np.array([len(row) + ended for row, ended in zip(tokens, stopped, strict=True)])
    return Decoded(tokens, stopped, total / np.maximum(counts, 1))


class _EncoderDecoder:
    def __init__(self, model: Any, inputs: Mapping[str, Tensor]) -> None:
        self._model, self._mask = model, inputs["attention_mask"]
        self._encoded = model.get_encoder()(input_ids=inputs["input_ids"], attention_mask=self._mask)
        self._past: Any = None
        self.first = torch.full((len(self._mask),), decoder_start(model), device=self._mask.device)

    def __call__(self, last: Tensor) -> Tensor:
        """Logits (n, words) after the tokens (n,)."""
        result = self._model(
            encoder_outputs=self._encoded,
            attention_mask=self._mask,
            decoder_input_ids=last[:, None],
            past_key_values=self._past,
            use_cache=True,
        )
        self._past = result.past_key_values
        return result.logits[:, -1]


class _Causal:
    def __init__(self, model: Any, inputs: Mapping[str, Tensor]) -> None:
        self._model, self._mask = model, inputs["attention_mask"]
        self._past: Any = None
        self.first = inputs["input_ids"]

    def __call__(self, last: Tensor) -> Tensor:
        """Logits (n, words) after the prompts (n, length), then after single tokens (n,)."""
        new = last if last.dim() == 2 else last[:, None]
        if self._past is not None:
            self._mask = torch.cat([self._mask, torch.ones_like(new)], dim=1)
        places = (self._mask.cumsum(dim=1) - 1).clamp_min(0)[:, -new.shape[1] :]
        result = self._model(
            input_ids=new,
            attention_mask=self._mask,
            position_ids=places,
            past_key_values=self._past,
            use_cache=True,
        )
        self._past = result.past_key_values
        return result.logits[:, -1]


def decoder_start(model: Any) -> int:
    """The token that a decoder starts with: the one it is configured with, or else padding, as T5 does."""
    named = (getattr(config, "decoder_start_token_id", None) for config in (model.generation_config, model.config))
    return next((token for token in named if token is not None), model.config.pad_token_id or 0)


def _ends(model: Any) -> set[int]:
    found = model.generation_config.eos_token_id
    found = model.config.eos_token_id if found is None else found
    return set() if found is None else {found} if isinstance(found, int) else set(found)
