"""Four LoRA adapters as PEFT saves them, over a tiny Mistral with a tokenizer: random, and far from the base."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import MistralConfig, MistralForCausalLM

from serve.text_model import WORDS, write_tokenizer
from tanbr.merge import Moe

TARGETS = (  # of each adapter: its rank, and what it changes
    (2, ["q_proj", "v_proj"]),
    (4, ["q_proj", "k_proj", "o_proj"]),
    (1, ["gate_proj", "up_proj", "down_proj"]),
    (3, ["q_proj", "v_proj", "down_proj"]),
)
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16}
RANK = 9  # that the four have together, where most meet


def write_adapters(folder: Path, **changes: int) -> dict[str, Any]:
    """Write base and adapters; what `tanbr.open` takes."""
    settings = SIZES | {"vocab_size": len(WORDS), "num_key_value_heads": 1, "max_position_embeddings": 64} | changes
    torch.manual_seed(0)
    config = MistralConfig(**settings, eos_token_id=1, bos_token_id=None, pad_token_id=0, initializer_range=0.3)
    MistralForCausalLM(config).save_pretrained(folder / "base")
    for number, (rank, targets) in enumerate(TARGETS):
        base = MistralForCausalLM.from_pretrained(folder / "base")
        lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, use_rslora=number == 1)
        model = get_peft_model(base, lora)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.normal_(std=0.3)
        model.save_pretrained(folder / str(number))
    write_tokenizer(folder / "base")
    return {"path": folder / "base", "experts": [folder / str(number) for number in range(len(TARGETS))]}


def blended_by_peft(moe: Moe, blend: Sequence[float]) -> Any:
    """The base with the blend of its adapters, by PEFT alone."""
    active = [(str(k), moe.source.names[k], weight) for k, weight in enumerate(blend) if weight]
    base = MistralForCausalLM.from_pretrained(moe.path)
    model = PeftModel.from_pretrained(base, active[0][1], adapter_name=active[0][0])
    for name, folder, _ in active[1:]:
        model.load_adapter(folder, adapter_name=name)
    if len(active) == 1:
        return model.eval()
    weights = [weight for _, _, weight in active]  # the first must not be of rslora, which PEFT would take for all
    model.add_weighted_adapter([name for name, _, _ in active], weights, "blend", combination_type="cat")
    model.set_adapter("blend")
    return model.eval()
