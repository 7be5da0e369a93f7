"""What holds for every method."""

import pytest
import torch

import tanbr
from merge.methods.reference import compare
from moe.tiny import build


@pytest.mark.parametrize("method", ["ties:density=1", "dare:density=1", "slerp", "estimated-regression"])
def test_one_expert_alone_stays_itself(related, method) -> None:
    compare(tanbr.open(related, method=method), [0.0, 0.0, 1.0, 0.0], lambda c: c.experts[2], roundings=8)


@pytest.mark.parametrize("method", ["task-arithmetic", "ties", "dare", "slerp", "estimated-regression"])
def test_equal_experts_merge_to_what_they_are(method, tmp_path) -> None:
    model = build("bert_moe")
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            for linear in (layer.intermediate.dense, layer.output.dense):
                for values in linear.parameters():
                    values.copy_(values[:1].expand_as(values).clone())
    model.save_pretrained(tmp_path / "moe")
    moe = tanbr.open(tmp_path / "moe", method=method)
    compare(moe, [0.5, 0.3, 0.2, 0.0], lambda c: c.experts[0], roundings=32)


@pytest.mark.parametrize("method", ["ties", "dare", "slerp", "task-arithmetic:scale=2", "estimated-regression"])
@pytest.mark.parametrize("model_type", ["deepseek_v3", "nllb-moe", "gpt_oss"])
def test_folds_regions_and_other_layouts(model_type, method, tmp_path) -> None:
    """A scaled piece beside a shared expert, a fold, transposed experts: merging equal experts is averaging them."""
    build(model_type).save_pretrained(tmp_path / "moe")
    moe, plain = (tanbr.open(tmp_path / "moe", method=name) for name in (method, "average"))
    blend = [0.0, 0.0, 0.0, 1.0]
    exact_at_one = method in {"slerp", "estimated-regression"}
    got, wanted = (dict(one.tensors(blend)) for one in (moe, plain))
    assert got.keys() == wanted.keys()
    for name, tensor in got.items():
        assert tensor.shape == wanted[name].shape
        assert torch.isfinite(tensor).all()
        if exact_at_one:
            assert torch.equal(tensor, wanted[name])
