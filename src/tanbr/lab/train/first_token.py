"""A BERT's last layer for the first token alone: the head reads nothing else, and it saves a sixth of a step.

Keys and values still come of all tokens. What the first token holds is what the whole layer would have given it.
"""

from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional as F


def read_first_token(model: Any) -> Any:
    """Make a BERT with a head over its first token compute no more than that in its last layer; others stay as is."""
    if model.config.model_type == "bert":
        last = model.bert.encoder.layer[-1]
        last.forward = partial(_first_token, last)
    return model


def _first_token(layer: Any, states: Tensor, mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
    """Run a BERT layer over states (n, length, D), and give the first token's (n, 1, D)."""
    attention, first = layer.attention.self, states[:, :1]
    heads = (*states.shape[:1], -1, attention.num_attention_heads, attention.attention_head_size)
    query, key, value = (
        project(seen).view(heads).transpose(1, 2)  # (n, heads, length or 1, D / heads)
        for project, seen in ((attention.query, first), (attention.key, states), (attention.value, states))
    )
    mixed = F.scaled_dot_product_attention(
        query, key, value, attn_mask=None if mask is None else mask[:, :, :1], scale=attention.scaling
    )
    attended = layer.attention.output(mixed.transpose(1, 2).flatten(2), first)
    result: Tensor = layer.feed_forward_chunk(attended)
    return result
