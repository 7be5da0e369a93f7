"""Which parameters learn, and how fast: what experts share, the head, and the experts have a rate each."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from tanbr.lab.train.config import PretrainConfig

_HEAD = re.compile(r"^(classifier|bert\.pooler)\.")
_EMBEDDINGS = re.compile(r"(^|\.)(embeddings|shared|embed_tokens|lm_head)\.")
_LAYER = re.compile(r"(?:^|\.)encoder\.(?:layer|block)\.(\d+)\.")


def groups(
    shared: Mapping[str, nn.Parameter], experts: Iterable[tuple[str, nn.Parameter]], config: PretrainConfig
) -> list[dict[str, Any]]:
    """Sort parameters by their rate, as AdamW takes them; what stays as it is learns nothing, and is left out."""
    head = [(name, weight) for name, weight in shared.items() if _HEAD.search(name)]
    body = [(name, weight) for name, weight in shared.items() if not _HEAD.search(name)]
    sorts = ((body, config.shared_rate), (head, config.head_rate), (experts, config.expert_rate))
    return [
        {"params": [weight for name, weight in sort if not _stays(name, weight, config)], "lr": rate}
        for sort, rate in sorts
    ]


def _stays(name: str, weight: nn.Parameter, config: PretrainConfig) -> bool:
    """Freeze a parameter of the embeddings or of the lowest layers, if the settings say so."""
    layer = _LAYER.search(name)
    below = layer is not None and int(layer[1]) < config.frozen_layers
    if below or ((config.frozen_layers or not config.train_embeddings) and _EMBEDDINGS.search(name)):
        weight.requires_grad_(False)
    return not weight.requires_grad
