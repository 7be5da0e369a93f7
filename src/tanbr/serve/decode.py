"""Decoding of a batch by encoder-decoder and causal models, greedily or drawn. Rows leave at their end."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from tanbr.moe.text import Inputs
from tanbr.serve.sampling import Sampling


class NotFinite(ArithmeticError):  # noqa: N818 - a finding
    """The model answers with NaN."""


class Row:
    """An answer that is being written; it leaves the batch when it is `done`."""

    text: str | None = None  # what the client gets, where that is not all: it ends before a stop string

    def __init__(self, limit: int, sampling: Sampling | None = None) -> None:
        """Write at most `limit` ≥ 1 tokens, drawn as `sampling` says or greedily."""
        self.tokens: list[int] = []  # without the one that ends it
        self.stopped = False  # whether it ended before its limit
        self._limit, self._sampling = limit, sampling
        self._random = np.random.default_rng(None if sampling is None else sampling.seed)

    @property
    def done(self) -> bool:
        """Whether nothing more is wanted."""
        return self.stopped or len(self.tokens) >= self._limit

    def add(self, token: int | None) -> None:
        """Take the next token; None where the model ends the answer."""
        if token is None:
            self.stopped = True
        else:
            self.tokens.append(token)

    def draw(self) -> tuple[float, float, float] | None:
        """Give temperature, top_p and the row's next random number; None for a greedy row."""
        how = self._sampling
        return None if how is None else (how.temperature, how.top_p, self._random.random())


@torch.inference_mode()
def decode(model: Any, inputs: Inputs, rows: Sequence[Row]) -> None:
    """Answer prompts (n, length), a row each, until all rows are done. Raises NotFinite where logits are not."""
    ends = _ends(model)
    batch: Any = _EncoderDecoder(model, inputs) if model.config.is_encoder_decoder else _Causal(model, inputs)
    logits = batch.step(batch.first)  # (rows, words)
    while True:
        likely, chosen = logits.float().softmax(dim=-1).max(dim=-1)  # (rows,)
        if not torch.isfinite(likely).all():
            raise NotFinite
        chosen = _with_draws(rows, logits, chosen)
        for row, token in zip(rows, chosen.tolist(), strict=True):
            row.add(None if token in ends else token)
        left = [place for place, row in enumerate(rows) if not row.done]
        if not left:
            return
        if len(left) < len(rows):
            rows = [rows[place] for place in left]
            places = torch.tensor(left, device=chosen.device)
            batch.keep(places)
            chosen = chosen[places]
        logits = batch.step(chosen)


# Both kinds of batch have:
#   first        what the first step takes
#   step(last)   logits (n, words) after the tokens (n,)
#   keep(places) continue with these rows only


class _EncoderDecoder:
    def __init__(self, model: Any, inputs: Inputs) -> None:
        tensors = on_device(inputs, model)
        self._model, self._mask = model, tensors["attention_mask"]
        self._encoded = model.get_encoder()(input_ids=tensors["input_ids"], attention_mask=self._mask).last_hidden_state
        self._past: Any = None
        self.first = torch.full((len(self._mask),), decoder_start(model), device=self._mask.device)

    def step(self, last: Tensor) -> Tensor:
        result = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._encoded),
            attention_mask=self._mask,
            decoder_input_ids=last[:, None],
            past_key_values=self._past,
            use_cache=True,
        )
        self._past = result.past_key_values
        logits: Tensor = result.logits[:, -1]
        return logits

    def keep(self, places: Tensor) -> None:
        self._mask, self._encoded = self._mask[places], self._encoded[places]
        self._past.batch_select_indices(places)


class _Causal:
    def __init__(self, model: Any, inputs: Inputs) -> None:
        tensors = on_device(inputs, model)
        self._model, self._mask, self.first = model, tensors["attention_mask"], tensors["input_ids"]
        self._past: Any = None

    def step(self, last: Tensor) -> Tensor:
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
        logits: Tensor = result.logits[:, -1]
        return logits

    def keep(self, places: Tensor) -> None:
        self._mask = self._mask[places]
        self._past.batch_select_indices(places)


def on_device(inputs: Inputs, model: Any) -> Mapping[str, Tensor]:
    """Put padded texts where the model is."""
    return {name: torch.from_numpy(table).to(model.device) for name, table in inputs.items()}


def decoder_start(model: Any) -> int:
    """The token that a decoder starts with: the one it is configured with, or else padding, as T5 does."""
    named = (getattr(config, "decoder_start_token_id", None) for config in (model.generation_config, model.config))
    return next((token for token in named if token is not None), model.config.pad_token_id or 0)


def _ends(model: Any) -> set[int]:
    found = model.generation_config.eos_token_id
    found = model.config.eos_token_id if found is None else found
    return set() if found is None else {found} if isinstance(found, int) else set(found)


def _with_draws(rows: Sequence[Row], logits: Tensor, chosen: Tensor) -> Tensor:
    """Draw words from logits (rows, words) for the rows that are not greedy; of the others, those that were chosen."""
    draws = {place: draw for place, row in enumerate(rows) if (draw := row.draw()) is not None}
    if not draws:
        return chosen
    places, own = list(draws), logits[list(draws)].double()
    chosen = chosen.clone()
    chosen[places] = drawn(own, *torch.tensor(list(draws.values()), dtype=torch.float64, device=own.device).T)
    return chosen


def drawn(logits: Tensor, temperature: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """Draw a word a row (n,) from logits (n, words) by uniform numbers (n,) in [0, 1).

    This inverts the cumulative sum in the order of the vocabulary: rounding in the logits moves its steps by as much
    and no more. In the order of probability, rounding could let two words change places.
    """
    chances = (logits / temperature[:, None]).softmax(dim=-1)
    if bool((top_p < 1).any()):
        chances = torch.where(nucleus(chances, top_p), chances, 0.0)
    sums = torch.where(chances > 0, chances.cumsum(dim=-1), -1.0)  # below every target: no word of chance 0 is drawn
    whole = sums.amax(dim=-1)
    target = torch.minimum(uniform * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    return (sums > target[:, None]).to(torch.uint8).argmax(dim=-1)  # the first that passes it


def nucleus(chances: Tensor, top_p: Tensor) -> Tensor:
    """Mark the words (n, words) in the smallest set whose probability reaches top_p (n,); of equal words the first.

    A top_p of 1 keeps all words, also those whose probability is lost in the rounding of the sum.
    """
    ordered, words = chances.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered  # what the more probable ones have
    kept = (before < top_p[:, None]) | (top_p[:, None] >= 1)
    kept[:, 0] = True
    return torch.zeros_like(kept).scatter(1, words, kept)
