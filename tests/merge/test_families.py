"""Every family: a tiny model saved by transformers, merged, loaded by plain transformers, compared."""

import json

import pytest
import torch

import tanbr.merge
from moe.tiny import ARCHITECTURES, K, blend_experts, build, is_router, load_plain, logits
from tanbr.errors import InputError
from tanbr.merge.export import export
from tanbr.moe.families import FAMILIES
from tanbr.moe.layer import TaskRouting, route

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


WIDE = {
    "bert_moe": {},
    "t5_moe": {},
    "mixtral": {"num_experts_per_tok": K},
    "gpt_oss": {"num_experts_per_tok": K},
    "deepseek_v3": {"num_experts_per_tok": K, "n_group": 1, "topk_group": 1},
}


@pytest.mark.parametrize("model_type", WIDE)
def test_concat_is_the_moe_that_runs_the_chosen_experts_alike(model_type, tmp_path) -> None:
    model = build(model_type, **WIDE[model_type])
    model.save_pretrained(tmp_path / "moe")
    moe = tanbr.merge.open(tmp_path / "moe")
    wide = load_plain(export(moe, tmp_path / "wide", mode="concat", experts=[2, 1]))
    if model_type in {"bert_moe", "t5_moe"}:
        route(model, TaskRouting(torch.tensor([[1, 2]] * 2)))
    else:
        use_experts_alike(model, [2, 1, 2, 1])
    torch.testing.assert_close(logits(wide), logits(model), rtol=1e-4, atol=1e-4)
    assert (logits(wide) - logits(moe.dense([0, 0.5, 0.5, 0]))).abs().max() > 1e-3  # side by side is no average


@torch.no_grad()
def use_experts_alike(model, experts) -> None:
    for name, parameter in model.named_parameters():
        if ".experts." in name:
            parameter.copy_(parameter[experts].clone())
        elif is_router(name):
            parameter.zero_()


@pytest.mark.parametrize("experts", [None, [], [0, 0], [0, 4], [-1]])
def test_concat_of_nothing_or_of_strangers_is_refused(experts, tmp_path) -> None:
    build("mixtral").save_pretrained(tmp_path / "moe")
    with pytest.raises(InputError, match="different experts"):
        export(tanbr.merge.open(tmp_path / "moe"), tmp_path / "out", mode="concat", experts=experts)
    assert not (tmp_path / "out").exists()
