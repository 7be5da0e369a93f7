"""DeepSeek-V3 and GLM-4-MoE: shared experts beside the routed ones; their own classes, all dense, hold a merge.

The dense FFN is the blend, scaled by `routed_scaling_factor`, side by side with the shared experts, and padded with
zeros where layers differ in width: these classes have one `intermediate_size` for all layers.
"""

from dataclasses import replace

from tanbr.errors import CheckpointError
from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.families.gated import SHARED, gated_experts
from tanbr.moe.family import DECODER_TWIN, Family, Fold, Settings


def _scaling(_: Checkpoint, settings: Settings, site: str) -> Fold:
    """Find the factor: top-k weights are normalised, then scaled."""
    if not settings["norm_topk_prob"]:
        raise CheckpointError(
            f"{site}: with norm_topk_prob off the factor depends on the input: no dense model has that"
        )
    return Fold(float(settings["routed_scaling_factor"]), "routed_scaling_factor")


DEEPSEEK = Family(
    model_type="deepseek_v3",
    dense="deepseek_v3",
    prefix=("DeepseekV3", "DeepseekV3"),
    count="n_routed_experts",
    experts=gated_experts(),
    shared=SHARED,
    drop=(r"\.mlp\.gate\.",),
    settings=lambda source: {"first_k_dense_replace": source["num_hidden_layers"]},
    fold=_scaling,
    twin=DECODER_TWIN | {
        "head_dim": 8, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
        "v_head_dim": 16, "qk_head_dim": 24, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
    },
)  # fmt: skip

GLM4 = replace(
    DEEPSEEK,
    model_type="glm4_moe",
    dense="glm4_moe",
    prefix=("Glm4Moe", "Glm4Moe"),
    twin=DECODER_TWIN | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
)
