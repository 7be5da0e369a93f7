"""GPT-OSS: transposed experts with biases, gate and up interleaved; its own class with one expert holds a merge."""

from tanbr.moe.family import DECODER_TWIN, UNIT_AXES, Family, in_place

GPT_OSS = Family(
    model_type="gpt_oss",
    dense="gpt_oss",
    prefix=("GptOss", "GptOss"),
    count="num_local_experts",
    experts=in_place(
        {
            "{site}.mlp.experts.gate_up_proj": "gate_up",  # (K, D, 2F)
            "{site}.mlp.experts.gate_up_proj_bias": "gate_up_bias",
            "{site}.mlp.experts.down_proj": "down",  # (K, F, D)
            "{site}.mlp.experts.down_proj_bias": "down_bias",
            "{site}.mlp.router.weight": "router",
            "{site}.mlp.router.bias": "router_bias",
        },
        keep_dim=True,
    ),
    settings=lambda _: {"num_local_experts": 1, "num_experts_per_tok": 1},
    unit_axes=UNIT_AXES | {"gate_up": 2, "gate_up_bias": 1, "down": 1},
    twin=DECODER_TWIN,
)
