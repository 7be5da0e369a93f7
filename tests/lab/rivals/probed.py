"""Models of both families, and probes of random tokens for them."""

from pathlib import Path
from typing import Any

import torch

from moe.tiny import build
from tanbr.lab.rivals.probes import Probe
from tanbr.merge import Moe
from tanbr.merge import open as open_moe

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert_moe", {}),
    "t5": ("t5_moe", {"decoder_start_token_id": 0}),
    "t5 gated": ("t5_moe", {"feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0}),
}


def some_probes(moe: Moe) -> list[list[Probe]]:
    """Two batches of random tokens per expert, with padding; the surprise is that of the first answer."""
    rng = torch.Generator().manual_seed(3)

    def probe(rows: int) -> Probe:
        mask = torch.ones(rows, 6, dtype=torch.int64)
        mask[0, 3:] = 0
        inputs = {"input_ids": torch.randint(3, 64, (rows, 6), generator=rng) * mask, "attention_mask": mask}
        if moe.config["is_encoder_decoder"]:
            inputs["labels"] = torch.randint(3, 64, (rows, 4), generator=rng)
            inputs["labels"][-1, 2:] = -100
            return Probe(inputs, lambda logits: -logits[:, :2].log_softmax(-1)[..., 0].T)
        return Probe(inputs, lambda logits: -logits.log_softmax(-1).T)

    return [[probe(2), probe(3)] for _ in range(moe.num_experts)]


def saved(folder: Path, name: str) -> Moe:
    """Write a tiny MoE of a family, and open it."""
    model_type, changes = FAMILIES[name]
    build(model_type, **changes).save_pretrained(folder / "moe")
    return open_moe(folder / "moe")
