"""One contract for every source: the same experts merge to the same model, wherever they come from."""

import json

import pytest
import torch
from safetensors.torch import load_file

import tanbr
from merge.sources.tiny_dense import adapter, build, family, heads, tuned
from moe.tiny import build as build_moe
from moe.tiny import load_plain
from tanbr.errors import CheckpointError
from tanbr.merge import Moe
from tanbr.merge.methods import METHODS

K = 3
BLEND = [0.5, 0.3, 0.2]
EPS = torch.finfo(torch.float32).eps


def moe_checkpoint(folder):
    build_moe("bert_moe").save_pretrained(folder / "moe")
    return tanbr.open(folder / "moe"), [0.4, 0.3, 0.2, 0.1]


def fine_tuned(folder):
    base, experts = family(folder, "BertForSequenceClassification", experts=K)
    return tanbr.open(base, experts=experts), BLEND


def adapters(folder):
    build("LlamaForCausalLM").save_pretrained(folder / "base")
    weights = load_file(folder / "base" / "model.safetensors")
    modules = [name.removesuffix(".weight") for name in weights if "_proj" in name]
    experts = [adapter(folder / str(k), folder / "base", modules[k:], r=k + 1, seed=k) for k in range(K)]
    return tanbr.open(folder / "base", experts=experts), BLEND


def mixture(folder):
    moe, _ = adapters(folder)
    whole = tuned(build("LlamaForCausalLM"), folder / "whole", seed=9)
    return tanbr.open(moe.path, experts=[folder / "0", whole, folder / "2"]), BLEND


def with_base(folder):
    moe, _ = mixture(folder)
    return tanbr.open(moe.path, experts=moe.source.names, base=True), [0.3, 0.2, 0.1, 0.4]


def with_bare_base(folder):
    base, experts = heads(folder, [("bad", "good"), ("good", "fair", "bad")])
    return tanbr.open(base, experts=experts, base=True), BLEND


def with_ancestor(folder):
    moe, _ = moe_checkpoint(folder)
    moe.export([0.1, 0.2, 0.3, 0.4], folder / "ancestor")
    return tanbr.open(moe.path, base=folder / "ancestor"), [0.3, 0.2, 0.1, 0.1, 0.3]


def joined_heads(folder):
    base, experts = heads(folder, [("bad", "good"), ("good", "fair", "bad"), ("fair", "awful")])
    return tanbr.open(base, experts=experts), BLEND


SOURCES = [moe_checkpoint, fine_tuned, adapters, mixture, joined_heads, with_base, with_bare_base, with_ancestor]


@pytest.fixture(params=SOURCES, ids=lambda make: make.__name__)
def opened(request, tmp_path):
    return request.param(tmp_path)


def test_a_blend_is_the_sum_of_its_experts(opened) -> None:
    moe, blend = opened
    alone = [dict(moe.tensors(row.tolist(), changing=True)) for row in torch.eye(moe.num_experts)]
    for name, merged in moe.tensors(blend, changing=True):
        terms = [weight * one[name].double() for weight, one in zip(blend, alone, strict=True)]
        bound = 32 * EPS * sum(term.abs() for term in terms) + 32 * EPS * merged.abs().max()
        assert ((merged.double() - sum(terms)).abs() <= bound).all(), name


def test_what_does_not_change_is_the_same_in_every_blend(opened) -> None:
    moe, blend = opened
    changing = {name for name, _ in moe.tensors(blend, changing=True)}
    one, other = dict(moe.tensors(blend)), dict(moe.tensors(None))
    assert 0 < len(changing) <= len(one)
    for name in one:
        assert torch.equal(one[name], other[name]) == (name not in changing), name


def test_merging_in_place_is_merging_anew(opened) -> None:
    moe, blend = opened
    model = moe.dense()
    moe.merge_into(model, blend)
    for (name, mine), other in zip(model.named_parameters(), moe.dense(blend).parameters(), strict=True):
        assert torch.equal(mine, other), name


def test_what_a_server_measures_lies_in_its_own_folder_unless_it_is_beside_the_experts(opened, tmp_path) -> None:
    source = opened[0].source
    beside = source.beside("grams")
    source.measured = tmp_path / "state"
    assert source.beside("grams").parent == tmp_path / "state"  # the experts' own may be read-only
    beside.mkdir()
    assert source.beside("grams") == beside


def test_methods_read_an_expert_in_parts_as_in_whole(opened) -> None:
    moe, _ = opened
    for piece in moe.plan.blended:
        whole = moe.source.rows(piece, range(moe.num_experts))
        part = moe.source.rows(piece, range(moe.num_experts), slice(5, 23))
        torch.testing.assert_close(part, whole[:, 5:23], rtol=8 * EPS, atol=8 * EPS * float(whole.abs().max()))
        alone = torch.stack([moe.source.one(piece, k).float() for k in range(moe.num_experts)])
        torch.testing.assert_close(whole, alone, rtol=8 * EPS, atol=8 * EPS * float(whole.abs().max()))


def test_export_certifies_and_stock_transformers_loads_it(opened, tmp_path) -> None:
    moe, blend = opened
    moe.export(blend, tmp_path / "out")
    for name, tensor in load_plain(tmp_path / "out").named_parameters():
        torch.testing.assert_close(tensor, dict(moe.dense(blend).named_parameters())[name], rtol=0, atol=0)
    certificate = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert certificate["blend"] == pytest.approx(blend)
    assert len(certificate["source"]["sha256"]) == 2 * len({file.path.parent for file in moe.files})


@pytest.mark.parametrize("method", [name for name in METHODS if name != "regression"])
def test_every_method_that_needs_no_data_merges_them(opened, method) -> None:
    moe, blend = opened
    moe = Moe(moe.source, method=method)
    for name, tensor in moe.tensors(blend, changing=True):
        assert torch.isfinite(tensor).all(), name


def test_weight_on_the_base_is_less_of_everything_else_and_a_checkpoint_stays_itself(tmp_path) -> None:
    moe, _ = with_base(tmp_path)
    base, whole = (load_file(folder / "model.safetensors") for folder in (moe.path, tmp_path / "whole"))
    for blend, theirs in (([0, 0, 0, 1], base), ([0, 1, 0, 0], whole)):  # bit for bit
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in moe.tensors(blend))
    whole = dict(moe.tensors([0.5, 0.3, 0.2, 0]))
    for name, tensor in moe.tensors([0.25, 0.15, 0.1, 0.5]):
        torch.testing.assert_close(tensor, (whole[name] + base[name]) / 2)


def test_a_base_without_the_head_has_the_mean_of_the_experts_heads(tmp_path) -> None:
    moe, _ = with_bare_base(tmp_path)
    alone = [dict(moe.tensors(row.tolist())) for row in torch.eye(3)]
    both = dict(moe.tensors([0.5, 0.5, 0]))
    bare = load_file(moe.path / "model.safetensors")
    assert torch.equal(alone[2]["bert.embeddings.word_embeddings.weight"], bare["embeddings.word_embeddings.weight"])
    assert not torch.equal(alone[0]["classifier.weight"], alone[1]["classifier.weight"])
    torch.testing.assert_close(alone[2]["classifier.weight"], both["classifier.weight"])


def test_a_base_of_another_shape_cannot_be_an_expert(tmp_path) -> None:
    base, experts = family(tmp_path, "BertForSequenceClassification", experts=2)
    build("BertForSequenceClassification", intermediate_size=40).save_pretrained(base)
    assert tanbr.open(base, experts=experts).num_experts == 2
    with pytest.raises(CheckpointError, match=r"the base cannot be an expert: .* is \(40,\) .* and \(48,\)"):
        tanbr.open(base, experts=experts, base=True)
    moe, _ = moe_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"base cannot be an expert of .*moe: for that it needs .* \(48,\)"):
        tanbr.open(moe.path, base=base)
