"""A Qwen3-MoE of many experts in families, made up but whole: a real checkpoint with a tokenizer of sixty words."""

from pathlib import Path

import torch

from moe.tiny import build
from serve.text_model import write_tokenizer


def write(folder: Path, *, experts: int = 64, families: int = 8, own: float = 0.3, gates: float = 0.1) -> Path:
    """Expert k is of family k mod 8: an ancestor, plus its family's difference, plus `own` of its own.

    Gates are alike inside a family, up to `gates`.
    """
    sizes = {"hidden_size": 32, "moe_intermediate_size": 32, "num_hidden_layers": 2}
    model = build("qwen3_moe", num_local_experts=experts, num_experts=experts, num_experts_per_tok=4, **sizes)
    draw = torch.Generator().manual_seed(1)
    family = torch.arange(experts) % families
    with torch.no_grad():
        for name, values in model.named_parameters():
            small = {True: own, False: gates}[".experts." in name]
            if ".experts." in name or name.endswith(".mlp.gate.weight"):  # (K, …)
                shared = torch.randn(families, *values.shape[1:], generator=draw)[family]
                ancestor = torch.randn(values.shape[1:], generator=draw) if ".experts." in name else 0.0
                different = small * torch.randn(values.shape, generator=draw)
                values.copy_(0.2 * (1.5 * ancestor + shared + different))
    model.save_pretrained(folder)
    return write_tokenizer(folder)
