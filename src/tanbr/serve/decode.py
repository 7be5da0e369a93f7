"""Greedy decoding of a batch, for encoder-decoder and for causal models. Rows leave as soon as they end."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput


class NotFinite(ArithmeticError):  # noqa: N818 - a finding
    """The model answers with NaN."""


@dataclass(frozen=True)
class Written:
    """What was written for one prompt."""

    tokens: tuple[int, ...]  # without the token that ends it
    stopped: bool  # whether the model ended it itself
    confidence: float  # mean probability of the tokens


@dataclass(frozen=True)
class Step:
    """What one step did."""

    added: dict[int, int] = field(default_factory=dict)  # row → its new token
    ended: dict[int, Written] = field(default_factory=dict)  # row → what was written for it in all


Decoded: TypeAlias = list[Written | None]  # (n,); None for a row that was given up
OnStep: TypeAlias = Callable[[Step], Collection[int]]  # hears each step; the rows to give up


@torch.inference_mode()
def decode(model: Any, inputs: Mapping[str, Tensor], *, limits: Sequence[int], on_step: OnStep) -> Decoded:
    """Write at most limits[i] ≥ 1 tokens for row i of `inputs` (n, length), padded on the left for a causal model.

    Raises NotFinite in the step in which a row's logits are not.
    """
    ends = _ends(model)
    step = _EncoderDecoder(model, inputs) if model.config.is_encoder_decoder else _Causal(model, inputs)
    done: Decoded = [None] * len(limits)
    tokens: list[list[int]] = [[] for _ in limits]
    total = [0.0] * len(limits)
    rows, chosen = list(range(len(limits))), step.first  # the rows still in the batch
    while rows:
        likely, chosen = step(chosen).float().softmax(dim=-1).max(dim=-1)  # (rows,)
        if not torch.isfinite(likely).all():
            raise NotFinite
        heard = Step()
        for row, token, chance in zip(rows, chosen.tolist(), likely.tolist(), strict=True):
            total[row] += chance
            stopped = token in ends
            if not stopped:
                tokens[row].append(token)
                heard.added[row] = token
            if stopped or len(tokens[row]) >= limits[row]:
                count = len(tokens[row]) + stopped
                done[row] = heard.ended[row] = Written(tuple(tokens[row]), stopped, total[row] / count)
        gone = {*heard.ended, *on_step(heard)}
        kept = [place for place, row in enumerate(rows) if row not in gone]
        if 0 < len(kept) < len(rows):
            places = torch.tensor(kept, device=chosen.device)
            step.keep(places)
            chosen = chosen[places]
        rows = [rows[place] for place in kept]
    return done


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

    def keep(self, places: Tensor) -> None:
        """Go on with these rows alone."""
        self._mask = self._mask[places]
        self._encoded = BaseModelOutput(last_hidden_state=self._encoded.last_hidden_state[places])
        self._past.batch_select_indices(places)


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
            logits_to_keep=1,
        )
        self._past = result.past_key_values
        return result.logits[:, -1]

    def keep(self, places: Tensor) -> None:
        """Go on with these rows alone."""
        self._mask = self._mask[places]
        self._past.batch_select_indices(places)


def decoder_start(model: Any) -> int:
    """The token that a decoder starts with: the one it is configured with, or else padding, as T5 does."""
    named = (getattr(config, "decoder_start_token_id", None) for config in (model.generation_config, model.config))
    return next((token for token in named if token is not None), model.config.pad_token_id or 0)


def _ends(model: Any) -> set[int]:
    found = model.generation_config.eos_token_id
    found = model.config.eos_token_id if found is None else found
    return set() if found is None else {found} if isinstance(found, int) else set(found)
