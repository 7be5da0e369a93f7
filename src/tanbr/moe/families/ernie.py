"""ERNIE-4.5-MoE: normalised top-k weights and shared experts; dense ERNIE-4.5 holds the two side by side."""

from tanbr.moe.families.gated import SHARED, gated_experts
from tanbr.moe.family import DECODER_TWIN, Family

ERNIE = Family(
    model_type="ernie4_5_moe",
    dense="ernie4_5",
    prefix=("Ernie4_5_Moe", "Ernie4_5"),
    count="moe_num_experts",
    experts=gated_experts(),
    shared=SHARED,
    drop=(r"\.mlp\.gate\.", r"\.moe_statics\."),
    settings=lambda source: {
        "head_dim": source.get("head_dim") or source["hidden_size"] // source["num_attention_heads"]
    },
    twin=DECODER_TWIN | {"moe_k": 2, "moe_layer_start_index": 1, "moe_layer_end_index": 1},
)
