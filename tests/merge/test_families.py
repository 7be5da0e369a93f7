"""Every family: a tiny model saved by transformers, merged in every way, loaded by plain transformers, compared."""

import json
import math

import pytest
import torch

import tanbr.merge
from elsewhere import elsewhere
from moe.tiny import K, blend_experts, build, load_plain, logits
from tanbr.moe.families import FAMILIES

BLEND = [0.1, 0.6, 0.0, 0.3]


every_family = pytest.mark.parametrize("moe", FAMILIES, indirect=True)


@pytest.mark.parametrize("original_format", [True, False], ids=["on-disk layout", "fused layout"])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_export_equals_the_moe_whose_experts_are_the_blend(model_type, original_format, tmp_path) -> None:
    model = build(model_type)
    model.save_pretrained(tmp_path / "moe", save_original_format=original_format)
    moe = tanbr.merge.open(tmp_path / "moe")
    untouched = logits(moe.dense([1.0, 0.0, 0.0, 0.0]))
    out = moe.export(BLEND, tmp_path / "dense")

    blend_experts(model, torch.tensor(BLEND, dtype=torch.float64))
    expected = logits(model)
    torch.testing.assert_close(logits(load_plain(out)), expected, rtol=1e-4, atol=1e-4)
    assert (expected - untouched).abs().max() > 1e-2  # the blend matters, or the comparison above says nothing

    certificate = json.loads((out / "certificate.json").read_text())
    assert certificate["blend"] == BLEND
    assert set(certificate["source"]["sha256"]) == {"config.json", "model.safetensors"}
    assert len(certificate["folds"]) == len(moe.sites)


@every_family
def test_every_way_to_merge_gives_the_same(moe) -> None:
    assert moe.num_experts == K
    found = list(moe.tensors(BLEND))
    tensors = dict(found)
    assert len(found) == len(tensors)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == moe.plan.shapes
    places = {name: torch.full_like(tensor, math.nan) for name, tensor in tensors.items()}
    for name, tensor in moe.tensors(BLEND, into=places.__getitem__):
        assert tensor is places[name]
        assert torch.equal(tensor, tensors[name])
    for name, tensor in moe.tensors(BLEND, changing=True):  # whole, also where a shared expert sits beside the blend
        assert torch.equal(tensor, tensors[name]), name
    live = moe.dense()
    moe.merge_into(live, BLEND)
    torch.testing.assert_close(logits(live), logits(moe.dense(BLEND)), rtol=0, atol=0)


@every_family
def test_a_dense_model_is_filled_the_same_elsewhere(moe) -> None:
    here = moe.dense(BLEND).state_dict()
    with elsewhere() as device:
        model = tanbr.merge.open(moe.path, device=str(device)).dense(BLEND)
        assert {tensor.device for tensor in (*model.parameters(), *model.buffers())} == {device}
        assert all(torch.equal(value.cpu(), here[name]) for name, value in model.state_dict().items())
