"""Decoder-only families: a table of where their experts lie and which dense model holds a merge.

Most have gate, up and down projections, `{experts}.{k}.gate_proj.weight` on disk or fused as `experts.gate_up_proj`.
"""

from dataclasses import replace

from tanbr.errors import CheckpointError
from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.families.folds import top_k_mass
from tanbr.moe.family import UNIT_AXES, ExpertPattern, Family, Fold, Role, Settings, in_place

MLP = "{site}.mlp"
GATE, UP, DOWN = (f"{MLP}.{name}_proj.weight" for name in ("gate", "up", "down"))
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
    """Patterns of both layouts, for experts whose projections go to the dense FFN `to`."""
    gate, up, down = (f"{to}.{name}_proj.weight" for name in ("gate", "up", "down"))
    return (
        ExpertPattern(f"{experts}.{{k}}.{names[0]}.weight", {"gate": gate}),
        ExpertPattern(f"{experts}.{{k}}.{names[1]}.weight", {"up": up}),
        ExpertPattern(f"{experts}.{{k}}.{names[2]}.weight", {"down": down}),
        ExpertPattern(f"{MLP}.experts.gate_up_proj", {"gate": gate, "up": up}),
        ExpertPattern(f"{MLP}.experts.down_proj", {"down": down}),
    )


def _scaling(_: Checkpoint, settings: Settings, site: str) -> Fold:
    """Find DeepSeek's factor: top-k weights are normalised, then scaled."""
    if not settings["norm_topk_prob"]:
        raise CheckpointError(
            f"{site}: with norm_topk_prob off the factor depends on the input: no dense model has that"
        )
    return Fold(float(settings["routed_scaling_factor"]), "routed_scaling_factor")


def _window(source: Settings) -> Settings:
    return {"sliding_window": source["sliding_window"]}


MIXTRAL = Family(  # top-k weights are normalised
    model_type="mixtral",
    dense="mistral",
    prefix=("Mixtral", "Mistral"),
    count="num_local_experts",
    experts=gated_experts(experts="{site}.block_sparse_moe.experts", names=("w1", "w3", "w2")),
    drop=(r"\.(block_sparse_moe|mlp)\.gate\.weight$",),
    settings=_window,
)

OLMOE = Family(  # pre-norm with full-width q/k norms, which no dense class is: its own class with one expert
    model_type="olmoe",
    dense="olmoe",
    prefix=("Olmoe", "Olmoe"),
    experts=(
        *gated_experts(to=f"{MLP}.experts.0"),
        ExpertPattern(f"{MLP}.gate.weight", {"router": f"{MLP}.gate.weight"}, keep_dim=True),
    ),
    settings=lambda _: {"num_experts": 1, "num_experts_per_tok": 1},
    fold=top_k_mass,
)

QWEN2 = replace(  # the shared expert's gate depends on the input: its own class, with one expert
    OLMOE,
    model_type="qwen2_moe",
    dense="qwen2_moe",
    prefix=("Qwen2Moe", "Qwen2Moe"),
    width=("moe_intermediate_size",),
)

QWEN3 = Family(
    model_type="qwen3_moe",
    dense="qwen3",
    prefix=("Qwen3Moe", "Qwen3"),
    count="num_local_experts",
    experts=gated_experts(),
    drop=(r"\.mlp\.gate\.weight$",),
    settings=_window,
    fold=top_k_mass,
)

FLEX_OLMO = Family(  # the norm behind the FFN takes out whatever factor the router's mass has left
    model_type="flex_olmo",
    dense="olmo2",
    prefix=("FlexOlmo", "Olmo2"),
    experts=gated_experts(),
    drop=(r"\.mlp\.gate\.weight$",),
    fold=top_k_mass,
)

GRANITE = Family(  # top-k logits are softmaxed among themselves
    model_type="granitemoe",
    dense="granite",
    prefix=("GraniteMoe", "Granite"),
    count="num_local_experts",
    experts=(
        ExpertPattern("{site}.block_sparse_moe.input_linear.weight", {"gate": GATE, "up": UP}),
        ExpertPattern("{site}.block_sparse_moe.output_linear.weight", {"down": DOWN}),
        ExpertPattern("{site}.block_sparse_moe.experts.gate_up_proj", {"gate": GATE, "up": UP}),
        ExpertPattern("{site}.block_sparse_moe.experts.down_proj", {"down": DOWN}),
    ),
    drop=(r"\.block_sparse_moe\.router\.",),
)

DEEPSEEK = Family(  # its own class, all layers dense and of one width: blend and shared experts side by side, padded
    model_type="deepseek_v3",
    dense="deepseek_v3",
    prefix=("DeepseekV3", "DeepseekV3"),
    count="n_routed_experts",
    experts=gated_experts(),
    shared=SHARED,
    drop=(r"\.mlp\.gate\.",),
    settings=lambda source: {"first_k_dense_replace": source["num_hidden_layers"]},
    fold=_scaling,
)

GLM4 = replace(DEEPSEEK, model_type="glm4_moe", dense="glm4_moe", prefix=("Glm4Moe", "Glm4Moe"))

ERNIE = Family(  # normalised top-k weights; blend and shared experts side by side, padded
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
)

GPT_OSS = Family(  # transposed experts with biases, gate and up interleaved: its own class with one expert
    model_type="gpt_oss",
    dense="gpt_oss",
    prefix=("GptOss", "GptOss"),
    count="num_local_experts",
    experts=in_place(
        {
            f"{MLP}.experts.gate_up_proj": "gate_up",  # (K, D, 2F)
            f"{MLP}.experts.gate_up_proj_bias": "gate_up_bias",
            f"{MLP}.experts.down_proj": "down",  # (K, F, D)
            f"{MLP}.experts.down_proj_bias": "down_bias",
            f"{MLP}.router.weight": "router",
            f"{MLP}.router.bias": "router_bias",
        },
        keep_dim=True,
    ),
    settings=lambda _: {"num_local_experts": 1, "num_experts_per_tok": 1},
    unit_axes=UNIT_AXES | {"gate_up": 2, "gate_up_bias": 1, "down": 1},
)

DECODERS = (MIXTRAL, QWEN2, QWEN3, OLMOE, FLEX_OLMO, GRANITE, DEEPSEEK, GLM4, ERNIE, GPT_OSS)
