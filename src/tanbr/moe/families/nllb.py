"""NLLB-MoE: top-2 weights sum to 1 and the output is scaled by 1 - moe_token_dropout; M2M100 holds a merge."""

from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.family import ExpertPattern, Family, Fold, Role, Settings

_TENSORS: dict[str, Role] = {"fc1.weight": "up", "fc1.bias": "up_bias", "fc2.weight": "down", "fc2.bias": "down_bias"}


def _token_dropout(_: Checkpoint, settings: Settings, __: str) -> Fold:
    return Fold(1.0 - settings["moe_token_dropout"], "1 - moe_token_dropout, which the MoE applies when it serves")


NLLB = Family(
    model_type="nllb-moe",
    dense="m2m_100",
    prefix=("NllbMoe", "M2M100"),
    experts=tuple(
        ExpertPattern(f"{{site}}.ffn.experts.expert_{{k}}.{name}", {role: f"{{site}}.{name}"})
        for name, role in _TENSORS.items()
    ),
    drop=(r"\.ffn\.router\.",),
    rename=(
        (r"\.ffn\.", "."),
        (r"\.ff_layer_norm\.", ".final_layer_norm."),
        (r"\.cross_attention\.", ".encoder_attn."),
        (r"\.cross_attention_layer_norm\.", ".encoder_attn_layer_norm."),
    ),
    width=("encoder_ffn_dim", "decoder_ffn_dim"),
    fold=_token_dropout,
)  # fmt: skip
