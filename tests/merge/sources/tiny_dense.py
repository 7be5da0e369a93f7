"""Tiny real dense models, a base and copies of it that were trained a little: noise on what training changes."""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig

SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "BertForSequenceClassification": ("bert", SMALL | {"max_position_embeddings": 64, "num_labels": 3}),
    "MistralForCausalLM": ("mistral", SMALL | {"num_key_value_heads": 1, "max_position_embeddings": 64}),
    "LlamaForCausalLM": ("llama", SMALL | {"num_key_value_heads": 2, "max_position_embeddings": 64}),
    "T5ForConditionalGeneration": (
        "t5",
        {"vocab_size": 64, "d_model": 32, "d_ff": 48, "d_kv": 16, "num_layers": 2, "num_heads": 2},
    ),
    "GPT2LMHeadModel": ("gpt2", {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}),
}


def build(name: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    model_type, settings = MODELS[name]
    torch.manual_seed(seed)
    model = getattr(transformers, name)(AutoConfig.for_model(model_type, **settings | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))  # so that biases and norms matter
    return model.to(dtype)


def tuned(
    model: Any, folder: Path, *, seed: int, where: Callable[[str], bool] = lambda _: True, size: float = 0.02
) -> Path:
    """Save a copy of a model with noise on the parameters that `where` names."""
    generator = torch.Generator().manual_seed(seed)
    copy = deepcopy(model)
    with torch.no_grad():
        for name, parameter in copy.named_parameters():
            if where(name):
                parameter.add_(size * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
    copy.save_pretrained(folder)
    return folder


def family(folder: Path, name: str, *, experts: int = 3, **changes: Any) -> tuple[Path, list[Path]]:
    """Save a base and its fine-tuned copies."""
    model = build(name, **changes)
    model.save_pretrained(folder / "base")
    return folder / "base", [tuned(model, folder / f"expert-{k}", seed=k + 1) for k in range(experts)]


def heads(folder: Path, labels: Sequence[Sequence[str]]) -> tuple[Path, list[Path]]:
    """Save a BERT without a head, and copies with heads of their own over these labels."""
    base = build("BertForSequenceClassification")
    base.bert.save_pretrained(folder / "bare")
    experts = []
    for k, names in enumerate(labels):
        columns = {"id2label": dict(enumerate(names)), "label2id": {name: at for at, name in enumerate(names)}}
        model = build("BertForSequenceClassification", num_labels=len(names), seed=k + 7, **columns)
        model.bert.load_state_dict(base.bert.state_dict())
        experts.append(tuned(model, folder / f"head-{k}", seed=k + 1))
    return folder / "bare", experts


def adapter(
    folder: Path,
    base: Path,
    modules: Sequence[str],
    *,
    r: int = 3,
    seed: int = 0,
    whole: Mapping[str, Tensor] | None = None,
    **settings: Any,
) -> Path:
    """Save an adapter as PEFT does, with factors that are not zero; `whole` is what it holds in full."""
    generator = torch.Generator().manual_seed(seed)
    weights = load_file(base / "model.safetensors")
    tensors = {f"base_model.model.{name}": tensor for name, tensor in (whole or {}).items()}
    for module in modules:
        m, n = weights[f"{module}.weight"].shape
        m, n = (n, m) if settings.get("fan_in_fan_out") else (m, n)
        rank = settings.get("rank_pattern", {}).get(module, r)
        tensors[f"base_model.model.{module}.lora_A.weight"] = 0.1 * torch.randn(rank, n, generator=generator)
        tensors[f"base_model.model.{module}.lora_B.weight"] = 0.1 * torch.randn(m, rank, generator=generator)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    plain = {"peft_type": "LORA", "bias": "none", "use_rslora": False, "fan_in_fan_out": False}
    config = plain | {"r": r, "lora_alpha": 2 * r, "target_modules": list(modules)} | settings
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
