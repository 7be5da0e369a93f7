"""Qwen2-MoE and Qwen3-MoE.

Qwen2's shared expert has a gate that depends on the input, so only its own class, with one expert, holds a merge.
"""

from tanbr.moe.families.gated import gated_experts, single_expert, top_k_mass
from tanbr.moe.family import DECODER_TWIN, Family

QWEN2 = Family(
    model_type="qwen2_moe",
    dense="qwen2_moe",
    prefix=("Qwen2Moe", "Qwen2Moe"),
    count="num_experts",
    experts=single_expert(),
    settings=lambda _: {"num_experts": 1, "num_experts_per_tok": 1},
    width=("moe_intermediate_size",),
    fold=top_k_mass,
    twin=DECODER_TWIN | {"shared_expert_intermediate_size": 24},
)

QWEN3 = Family(
    model_type="qwen3_moe",
    dense="qwen3",
    prefix=("Qwen3Moe", "Qwen3"),
    count="num_local_experts",
    experts=gated_experts(),
    drop=(r"\.mlp\.gate\.weight$",),
    settings=lambda source: {"sliding_window": source["sliding_window"]},
    fold=top_k_mass,
)
