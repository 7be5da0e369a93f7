"""Tiny random models of every family, as transformers saves them."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig
from transformers.utils import logging

from tanbr.moe.families import CLASSES, FAMILIES
from tanbr.moe.layer import BlendRouting, MoeSite, route

logging.disable_progress_bar()
logging.set_verbosity_error()

K = 4
SUFFIXES = {"bert_moe": "ForSequenceClassification"} | dict.fromkeys(
    ("t5_moe", "switch_transformers"), "ForConditionalGeneration"
)
_SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 64,
}  # fmt: skip
_DECODER = _SIZES | {
    "moe_intermediate_size": 40, "num_key_value_heads": 2, "head_dim": 16, "num_experts_per_tok": 2,
    "layer_types": None, "mlp_only_layers": [], "rope_parameters": None, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_T5 = {
    "vocab_size": 64, "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2,
    "decoder_start_token_id": 0,
}  # fmt: skip
_GROUPS = {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
TINY: dict[str, dict[str, Any]] = dict.fromkeys(FAMILIES, _DECODER) | {  # changes that make a configuration tiny
    "bert_moe": _SIZES,
    "t5_moe": _T5,
    "switch_transformers": _T5 | {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    "qwen2_moe": _DECODER | {"shared_expert_intermediate_size": 24},
    "deepseek_v3": _DECODER | _GROUPS | {
        "head_dim": 8, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
        "v_head_dim": 16, "qk_head_dim": 24,
    },
    "glm4_moe": _DECODER | _GROUPS | {"n_group": 1},
    "ernie4_5_moe": _DECODER | {"moe_k": 2, "moe_layer_start_index": 1, "moe_layer_end_index": 1},
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {"qwen3_moe": {"norm_topk_prob": True}}
# Their top-k weights do not sum to 1: only with a router that prefers no expert is the factor the same for all inputs.
UNEVEN = {"switch_transformers", "qwen2_moe", "olmoe", "flex_olmo"}


def build(model_type: str, *, seed: int = 0, **changes: Any) -> Any:
    family = FAMILIES[model_type]
    base = AutoConfig.for_model(model_type).to_dict()
    settings = base | {key: value for key, value in TINY[model_type].items() if key in base or key == "head_dim"}
    config = AutoConfig.for_model(**settings | {family.count: K} | VARIANTS.get(model_type, {}) | changes)
    name = family.prefix[0] + SUFFIXES.get(model_type, "ForCausalLM")
    torch.manual_seed(seed)
    model = (CLASSES.get(name) or getattr(transformers, name))(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
            elif "norm" in parameter_name.lower() and parameter_name.endswith("weight"):
                parameter.normal_(mean=1.0, std=0.2)
            else:
                parameter.normal_(std=0.2)
            if model_type in UNEVEN and (".router." in parameter_name or parameter_name.endswith(".mlp.gate.weight")):
                parameter.zero_()
    return model


def expert_values(bert: Any) -> list[Tensor]:
    """The parameters (K, …) of a BERT-MoE's experts."""
    linears = (linear for layer in bert.bert.encoder.layer for linear in (layer.intermediate.dense, layer.output.dense))
    return [values for linear in linears for values in linear.parameters()]


@torch.no_grad()
def blend_experts(model: Any, blend: Tensor) -> None:
    """The slow reference: make every expert of a live MoE the blend, and let transformers' own MoE code run."""
    if any(isinstance(module, MoeSite) for module in model.modules()):
        route(model, BlendRouting(blend.float()))
        return
    for module in model.modules():
        if type(module).__name__ in {"SwitchTransformersExperts"}:
            experts = [module[f"expert_{k}"] for k in range(K)]
            for same in zip(*(expert.parameters() for expert in experts), strict=True):
                mean = sum(float(weight) * value.double() for weight, value in zip(blend, same, strict=True)).float()
                for value in same:
                    value.copy_(mean)
    for name, parameter in model.named_parameters():
        if ".experts." in name and ".expert_" not in name:
            mean = torch.einsum("k,k...->...", blend, parameter.double()).float()
            parameter.copy_(mean.expand_as(parameter))


@torch.no_grad()
def logits(model: Any) -> Tensor:
    ids = torch.randint(3, 64, (2, 9), generator=torch.Generator().manual_seed(5))
    more = {"decoder_input_ids": ids[:, :5]} if model.config.is_encoder_decoder else {}
    return model.eval()(input_ids=ids, **more).logits


def load_plain(folder: Path) -> Any:
    """Load an exported checkpoint as a user does who has never heard of this package."""
    config = AutoConfig.from_pretrained(folder)
    return getattr(transformers, config.architectures[0]).from_pretrained(folder).eval()
