"""The factor that a router puts on its experts' output, which a dense model has to carry in its weights.

With normalised top-k weights it is 1. Without, it is the probability mass of the chosen experts, which depends on the
input: a dense model can only hold its mean. It is estimated without data, by drawing inputs as the router sees them
(unit-RMS, scaled by the norm in front of it).
"""

import torch

from tanbr.errors import CheckpointError
from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.family import Fold, Settings

DRAWS = 4096


def mean_mass(checkpoint: Checkpoint, *, router: str, norm: str, top_k: int, bias: str | None = None) -> float:
    """Estimate the mean softmax mass of the top-k experts, for the router weight (K, D) behind the norm weight (D,)."""
    for name in (router, norm):
        if name not in checkpoint.specs:
            raise CheckpointError(f"{checkpoint.path} lacks {name}, which the scale of merged experts comes from")
    weight = checkpoint.tensor(router).float()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(DRAWS, weight.shape[1], generator=generator) * checkpoint.tensor(norm).float()
    logits = inputs @ weight.T
    if bias is not None and bias in checkpoint.specs:
        logits += checkpoint.tensor(bias).float()
    return float(logits.softmax(dim=-1).topk(top_k, dim=-1).values.sum(dim=-1).mean())


def top_k_mass(checkpoint: Checkpoint, settings: Settings, site: str) -> Fold:
    """Fold for routers of the usual kind: softmax, top-k, normalised only if `norm_topk_prob`."""
    if settings["norm_topk_prob"]:
        return Fold(1.0, "none: the router's top-k weights sum to 1")
    mass = mean_mass(
        checkpoint,
        router=f"{site}.mlp.gate.weight",
        norm=f"{site}.post_attention_layernorm.weight",
        top_k=settings["num_experts_per_tok"],
    )
    return Fold(mass, "mean top-k mass of the router, estimated on normal inputs (norm_topk_prob is off)")
