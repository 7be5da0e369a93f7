"""Four LoRA adapters over a tiny Mistral as llama.cpp reads them: GGUF files in float32, and a tokenizer of bytes."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engines.tiny_adapters import write_adapters

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = ["<pad>", "</s>", *BYTES, "Ġw", "Ġt", "he", "in"]
MERGES = [("Ġ", "w"), ("Ġ", "t"), ("h", "e"), ("i", "n")]
ARCHITECTURE = "llama"  # Mistral's, too
CONTEXT = 512
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def write_gguf(folder: Path, **changes: int) -> dict[str, Any]:
    """Write base and adapters, each as folder and as `.gguf` beside it; what `tanbr.open` takes."""
    made = write_adapters(folder, **{"vocab_size": len(TOKENS), "max_position_embeddings": CONTEXT} | changes)
    text = Tokenizer(models.BPE({token: i for i, token in enumerate(TOKENS)}, MERGES))
    text.pre_tokenizer, text.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=text, pad_token="<pad>", eos_token="</s>").save_pretrained(made["path"])
    weights = load_file(made["path"] / "model.safetensors")
    for number, token in enumerate(TOKENS):
        if not token.isascii():  # it writes whole characters: a part of one has no text of its own
            weights["lm_head.weight"][number] = 0
    save_file(weights, made["path"] / "model.safetensors", metadata={"format": "pt"})
    _base(made["path"])
    for expert in made["experts"]:
        _adapter(expert, json.loads((made["path"] / "config.json").read_text()))
    return made


def _base(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    with_heads = _permuted(config)
    named = ((f"{_name(name)}.weight", with_heads(name, tensor)) for name, tensor in tensors.items())

    def say(file: gguf.GGUFWriter) -> None:
        file.add_context_length(CONTEXT)
        file.add_embedding_length(config["hidden_size"])
        file.add_block_count(config["num_hidden_layers"])
        file.add_feed_forward_length(config["intermediate_size"])
        file.add_head_count(config["num_attention_heads"])
        file.add_head_count_kv(config["num_key_value_heads"])
        file.add_key_length(config["head_dim"])
        file.add_value_length(config["head_dim"])
        file.add_rope_dimension_count(config["head_dim"])
        file.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
        file.add_layer_norm_rms_eps(config["rms_norm_eps"])
        file.add_vocab_size(len(TOKENS))
        file.add_tokenizer_model("gpt2")
        file.add_tokenizer_pre("gpt-2")
        file.add_token_list(TOKENS)
        file.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(TOKENS) - 2))
        file.add_token_merges([" ".join(pair) for pair in MERGES])
        file.add_eos_token_id(1)
        file.add_bos_token_id(1)
        file.add_pad_token_id(0)
        file.add_add_bos_token(False)

    _write(folder, named, say)


def _adapter(folder: Path, config: dict[str, Any]) -> None:
    with_heads = _permuted(config)
    named = []
    for name, factor in load_file(folder / "adapter_model.safetensors").items():
        module, _, which = name.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".")
        up = which == "lora_B"
        named.append((f"{_name(module)}.weight.{which.lower()}", with_heads(module, factor) if up else factor))

    def say(file: gguf.GGUFWriter) -> None:
        file.add_type(gguf.GGUFType.ADAPTER)
        file.add_string(gguf.Keys.Adapter.TYPE, "lora")
        alpha = json.loads((folder / "adapter_config.json").read_text())["lora_alpha"]
        file.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(alpha))

    _write(folder, named, say)


def _write(
    folder: Path, tensors: Iterable[tuple[str, np.ndarray[Any, Any]]], say: Callable[[gguf.GGUFWriter], None]
) -> None:
    file = gguf.GGUFWriter(folder.with_suffix(".gguf"), ARCHITECTURE)
    say(file)
    for name, tensor in tensors:
        file.add_tensor(name, np.ascontiguousarray(tensor, np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _name(name: str) -> str:
    name = name.removesuffix(".weight")
    layer, _, module = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{NAMES[module]}" if layer.isdigit() else NAMES[name]


def _permuted(config: dict[str, Any]) -> Callable[[str, np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """Order the rows of q and k as llama.cpp rotates them: pairs side by side, where transformers has two halves."""

    def permuted(name: str, tensor: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        count = next((heads[one] for one in heads if one in name), 0)
        if not count:
            return tensor
        return tensor.reshape(count, 2, -1, tensor.shape[-1]).swapaxes(1, 2).reshape(tensor.shape)

    return permuted
