"""Upcycling: the MoE computes what the dense model did, and merges back into it."""

import pytest
import torch
import transformers

import tanbr.merge
from moe.tiny import logits
from tanbr.errors import CheckpointError, InputError, OutputError
from tanbr.lab.train.upcycle import RECIPES, upcycle
from tanbr.moe.families import CLASSES
from tanbr.moe.layer import TaskRouting, route

SIZE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
T5 = {
    "vocab_size": 64, "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2,
    "decoder_start_token_id": 0,
}  # fmt: skip
CONFIGS = {
    "bert": SIZE,
    "t5": T5 | {"feed_forward_proj": "gated-gelu"},
    "llama": SIZE,
    "mistral": SIZE | {"num_key_value_heads": 2},
    "qwen3": SIZE | {"num_key_value_heads": 2, "head_dim": 24},
    "olmo2": SIZE,
}


def dense_model(model_type, **changes):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **CONFIGS[model_type] | changes)
    model = getattr(transformers, next(iter(RECIPES[model_type].classes)))(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize("model_type", RECIPES)
def test_moe_computes_what_the_dense_model_did(model_type, tmp_path) -> None:
    model = dense_model(model_type)
    model.save_pretrained(tmp_path / "dense")
    (tmp_path / "dense" / "tokenizer.json").write_text("{}")
    out = upcycle(tmp_path / "dense", tmp_path / "moe", experts=4)
    moe = tanbr.merge.open(out)
    name = moe.config["architectures"][0]
    live = (CLASSES.get(name) or getattr(transformers, name)).from_pretrained(out)
    if name in CLASSES:
        route(live, TaskRouting(torch.tensor([1, 3])))
    torch.testing.assert_close(logits(live), logits(model), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits(moe.dense([0.3, 0.3, 0.4, 0])), logits(model), rtol=1e-4, atol=1e-4)
    assert (out / "tokenizer.json").exists()


def test_bad_input(tmp_path) -> None:
    dense_model("llama", mlp_bias=True).save_pretrained(tmp_path / "dense")
    with pytest.raises(CheckpointError, match="no mlp_bias"):
        upcycle(tmp_path / "dense", tmp_path / "moe", experts=4)
    with pytest.raises(InputError, match="at least 2"):
        upcycle(tmp_path / "dense", tmp_path / "moe", experts=1)
    transformers.BertModel(transformers.BertConfig(**SIZE)).save_pretrained(tmp_path / "bare")
    with pytest.raises(CheckpointError, match="must name BertForSequenceClassification"):
        upcycle(tmp_path / "bare", tmp_path / "moe", experts=2)
    dense_model("bert").save_pretrained(tmp_path / "bert")
    with pytest.raises(OutputError, match="exists already"):
        upcycle(tmp_path / "bert", tmp_path / "dense", experts=2)
    assert not (tmp_path / "moe").exists()
