"""What most decoder-only families share: gate, up and down projections in `{site}.mlp`, and the router's factor.

A router puts a factor on its experts' output, which a dense model has to carry in its weights instead. With normalised
top-k weights it is 1. Without, it is the probability mass of the chosen experts, which depends on the input: a dense
model can only hold its mean. It is estimated without data, by drawing inputs as the router sees them (unit-RMS, scaled
by the norm in front of it).
"""

import torch

from tanbr.errors import CheckpointError
from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.family import ExpertPattern, Fold, Role, Settings

DRAWS = 4096

MLP = "{site}.mlp"
GATE, UP, DOWN = f"{MLP}.gate_proj.weight", f"{MLP}.up_proj.weight", f"{MLP}.down_proj.weight"
SHARED: dict[Role, str] = {
    "gate": f"{MLP}.shared_experts.gate_proj.weight",
    "up": f"{MLP}.shared_experts.up_proj.weight",
    "down": f"{MLP}.shared_experts.down_proj.weight",
}


def gated_experts(
    *,
    experts: str = f"{MLP}.experts",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    to: str = MLP,
) -> tuple[ExpertPattern, ...]:
    """Patterns of both layouts: `{experts}.{k}.gate_proj.weight` on disk, fused `{site}.mlp.experts.gate_up_proj`."""
    gate, up, down = (f"{to}.{name}_proj.weight" for name in ("gate", "up", "down"))
    return (
        ExpertPattern(f"{experts}.{{k}}.{names[0]}.weight", {"gate": gate}),
        ExpertPattern(f"{experts}.{{k}}.{names[1]}.weight", {"up": up}),
        ExpertPattern(f"{experts}.{{k}}.{names[2]}.weight", {"down": down}),
        ExpertPattern(f"{MLP}.experts.gate_up_proj", {"gate": gate, "up": up}),
        ExpertPattern(f"{MLP}.experts.down_proj", {"down": down}),
    )


def single_expert() -> tuple[ExpertPattern, ...]:
    """Patterns for families whose merge is held by their own class with one expert."""
    router = f"{MLP}.gate.weight"
    return (*gated_experts(to=f"{MLP}.experts.0"), ExpertPattern(router, {"router": router}, keep_dim=True))


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
