"""Every family: a tiny model saved by transformers, merged, loaded by plain transformers, compared."""

import json

import pytest
import torch

import tanbr.merge
from moe.tiny import ARCHITECTURES, K, blend_experts, build, load_plain, logits
from tanbr.moe.families import FAMILIES

BLEND = [0.1, 0.6, 0.0, 0.3]


def test_every_family_is_tested() -> None:
    assert set(ARCHITECTURES) == set(FAMILIES)


@pytest.mark.parametrize("original_format", [True, False], ids=["on-disk layout", "fused layout"])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_export_equals_the_moe_whose_experts_are_the_blend(model_type, original_format, tmp_path) -> None:
    model = build(model_type)
    model.save_pretrained(tmp_path / "moe", save_original_format=original_format)
    untouched = logits_of_dense(tmp_path / "moe", [1.0, 0.0, 0.0, 0.0])
    out = tanbr.merge.open(tmp_path / "moe").export(BLEND, tmp_path / "dense")

    blend_experts(model, torch.tensor(BLEND, dtype=torch.float64))
    expected = logits(model)
    torch.testing.assert_close(logits(load_plain(out)), expected, rtol=1e-4, atol=1e-4)
    assert (expected - untouched).abs().max() > 1e-2  # the blend matters, or the comparison above says nothing

    certificate = json.loads((out / "certificate.json").read_text())
    assert certificate["identical_experts"]["max_difference"] < 1e-4
    assert certificate["blend"] == BLEND
    assert set(certificate["source"]["sha256"]) == {"config.json", "model.safetensors"}
    assert len(certificate["folds"]) == len(tanbr.merge.open(tmp_path / "moe").sites)


def logits_of_dense(folder, blend):
    return logits(tanbr.merge.open(folder).dense(blend))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_live_merge_in_place_equals_a_fresh_dense_model(model_type, tmp_path) -> None:
    build(model_type).save_pretrained(tmp_path / "moe")
    moe = tanbr.merge.open(tmp_path / "moe")
    assert moe.num_experts == K
    live = moe.dense()
    moe.merge_into(live, BLEND)
    torch.testing.assert_close(logits(live), logits(moe.dense(BLEND)), rtol=0, atol=0)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_sharded_bfloat16(model_type, tmp_path) -> None:
    model = build(model_type).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "moe", max_shard_size="30KB")
    assert len(list((tmp_path / "moe").glob("*.safetensors"))) > 1
    moe = tanbr.merge.open(tmp_path / "moe")
    dense = moe.dense(BLEND)
    assert next(dense.parameters()).dtype == torch.bfloat16

    model.float().save_pretrained(tmp_path / "wide")
    expected = tanbr.merge.open(tmp_path / "wide").dense(BLEND).to(torch.bfloat16)
    bound = K * torch.finfo(torch.float32).eps * max(float(p.detach().abs().max()) for p in model.parameters())
    for (name, got), want in zip(dense.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=2**-7, atol=bound, msg=name)  # summed in float32, rounded once
