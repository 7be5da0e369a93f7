"""A BERT classifier's forward pass with nothing in it that its answer does not need. Exact up to rounding.

Tokens of all texts lie one behind the other: linear maps see no padding, only the attention does. The head reads the
first token alone, so the last layer computes no other; and as that has one query a head, its scores and its mix of the
other tokens need no keys and values of these: (K h)·q = h·(Kᵀ q) and Σ a (V h) = V (Σ a h), a head at a time.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import BertForSequenceClassification


def takes(model: Any) -> bool:
    """Whether `logits` can run a model: a BERT with a head, and nothing that transformers would do besides."""
    return type(model) is BertForSequenceClassification and not model.config.is_decoder


def of_one_token(model: Any) -> set[str]:
    """Name the linear maps outside of FFNs that are asked for one token a text, or not at all: they cost nothing."""
    if not takes(model):
        return set()
    last = f"bert.encoder.layer.{len(model.bert.encoder.layer) - 1}.attention"
    within = [f"{last}.self.{name}" for name in ("query", "key", "value")]
    return {*within, f"{last}.output.dense", "bert.pooler.dense", "classifier"}


def logits(model: Any, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
    """Answer padded texts (n, length), padded on the right: (n, columns)."""
    texts = Packed(attention_mask)
    hidden = embedded(model.bert.embeddings, texts, input_ids, token_type_ids)
    *others, last = model.bert.encoder.layer
    for layer in others:
        hidden = ffn(layer, attended(layer.attention, hidden, texts))
    first = ffn(last, first_attended(last.attention, hidden, texts))  # (n, D)
    answers: Tensor = model.classifier(torch.tanh(model.bert.pooler.dense(first)))
    return answers


class Packed:
    """Where the real tokens are: N of n texts, `length` at most each."""

    def __init__(self, mask: Tensor) -> None:
        self.shape = mask.shape  # (n, length)
        whole = bool(mask.all())
        self.places = None if whole else mask.flatten().nonzero().squeeze(1)  # (N,) among the padded ones
        self.mask = None if whole else mask.bool()[:, None, None, :]

    def pack(self, padded: Tensor) -> Tensor:
        """(n, length, …) → (N, …)."""
        flat = padded.flatten(0, 1)
        return flat if self.places is None else flat.index_select(0, self.places)

    def pad(self, packed: Tensor) -> Tensor:
        """(N, D) → (n, length, D), with 0 where there is no token."""
        if self.places is not None:
            packed = packed.new_zeros(self.shape.numel(), packed.shape[1]).index_copy_(0, self.places, packed)
        return packed.view(*self.shape, -1)


def embedded(part: Any, texts: Packed, ids: Tensor, types: Tensor | None) -> Tensor:
    """Look tokens up: (N, D)."""
    positions = part.position_ids[:, : ids.shape[1]].expand_as(ids)
    types = torch.zeros_like(ids) if types is None else types
    hidden = part.word_embeddings(texts.pack(ids)) + part.token_type_embeddings(texts.pack(types))
    normed: Tensor = part.LayerNorm(hidden.add_(part.position_embeddings(texts.pack(positions))))
    return normed


def attended(attention: Any, hidden: Tensor, texts: Packed) -> Tensor:
    """Run a layer's attention over hidden states (N, D)."""
    own = attention.self
    query, key, value = (_by_head(project, hidden, texts, own) for project in (own.query, own.key, own.value))
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=texts.mask, scale=own.scaling)
    return _joined(attention.output, texts.pack(mixed.transpose(1, 2).flatten(2)), hidden)


def first_attended(attention: Any, hidden: Tensor, texts: Packed) -> Tensor:
    """Run a layer's attention for the first token of each text alone: hidden states (N, D) → (n, D)."""
    own, states = attention.self, texts.pad(hidden)  # (n, length, D)
    first, heads = states[:, 0], own.num_attention_heads
    query = own.query(first).unflatten(1, (heads, -1))  # (n, heads, d)
    # a key's bias adds the same to all scores of a head, which softmax takes out again
    asked = torch.einsum("nhd,hdD->nhD", query, own.key.weight.view(heads, -1, states.shape[2]))
    scores = (asked @ states.transpose(1, 2)).mul_(own.scaling)  # (n, heads, length)
    if texts.mask is not None:
        scores = scores.masked_fill_(~texts.mask.squeeze(1), float("-inf"))
    seen = scores.softmax(dim=2) @ states  # (n, heads, D)
    mixed = torch.einsum("nhD,hdD->nhd", seen, own.value.weight.view(heads, -1, states.shape[2])).flatten(1)
    mixed = mixed if own.value.bias is None else mixed + own.value.bias
    return _joined(attention.output, mixed, first)


def _by_head(project: Any, hidden: Tensor, texts: Packed, own: Any) -> Tensor:
    """Map hidden states (N, D) → (n, heads, length, d)."""
    return texts.pad(project(hidden)).view(*texts.shape, own.num_attention_heads, -1).transpose(1, 2)


def _joined(part: Any, mixed: Tensor, before: Tensor) -> Tensor:
    """Map, add what was there before, norm: the end of an attention and of an FFN."""
    normed: Tensor = part.LayerNorm(part.dense(mixed).add_(before))
    return normed


def ffn(layer: Any, hidden: Tensor) -> Tensor:
    """Run a layer's FFN on hidden states (N, D)."""
    inner = layer.intermediate
    return _joined(layer.output, inner.intermediate_act_fn(inner.dense(hidden)), hidden)
