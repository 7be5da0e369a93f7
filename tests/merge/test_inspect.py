"""Permuted experts are told apart from related and from unrelated ones, and put back exactly."""

import numpy as np
import pytest
import torch

import tanbr.merge
from moe.tiny import build, logits
from tanbr.merge.align import align, expert_tensor, orders, permuted, unit_count
from tanbr.merge.inspect import glance, inspect
from tanbr.moe.layer import TaskRouting, route
from tanbr.moe.writing import write_json, write_tensors


def rewritten(moe, folder, change):
    """Copy a checkpoint with every expert's tensors changed: change(site, part, expert, own, first) → tensor."""
    values = {name: moe.checkpoint.tensor(name).clone() for name in moe.checkpoint.specs}
    for site in moe.sites:
        for part in site.parts:
            for expert, (name, start) in enumerate(part.blocks):
                size = int(np.prod(part.shape))
                block = values[name].view(-1)[start : start + size].view(part.shape)
                first = expert_tensor(moe, part, 0)
                block.copy_(change(site, part, expert, block.clone(), first))
    folder.mkdir()
    write_json(folder / "config.json", moe.checkpoint.config)
    write_tensors(folder, list(moe.checkpoint.specs.values()), list(values.values()))
    return tanbr.merge.open(folder)


def order_of(site, expert):
    return np.random.default_rng([expert, len(site.name)]).permutation(unit_count(site))


def shuffled(site, part, expert, own, first):
    """Every expert is the first, its hidden units in another order."""
    if expert == 0 or part.unit_axis is None:
        return first
    return permuted(first, part.unit_axis, order_of(site, expert))


families = pytest.mark.parametrize(
    "moe", ["bert_moe", "t5_moe", "nllb-moe", "qwen2_moe", "granitemoe", "deepseek_v3", "gpt_oss"], indirect=True
)


@families
def test_verdicts(moe, tmp_path) -> None:
    unrelated = inspect(moe)
    assert unrelated.verdict == glance(moe).verdict == "do not merge"
    mixed = rewritten(moe, tmp_path / "mixed", shuffled)
    assert inspect(mixed).verdict == glance(mixed).verdict == "align first"
    close = rewritten(moe, tmp_path / "kin", lambda site, part, expert, own, first: first + 0.1 * own)
    kin = inspect(close)
    assert kin.verdict == glance(close).verdict == "merge"
    assert all(site.in_place > 0.9 and site.moved == 0 for site in kin.sites)


@families
def test_a_permuted_copy_is_recovered_exactly(moe, tmp_path) -> None:
    mixed = rewritten(moe, tmp_path / "mixed", shuffled)
    for site in mixed.sites:
        for expert, order in enumerate(orders(mixed, site)):
            assert np.array_equal(order, np.argsort(order_of(site, expert)) if expert else np.arange(unit_count(site)))
    aligned = tanbr.merge.open(align(mixed, tmp_path / "aligned"))
    for site in aligned.sites:
        for part in site.parts:
            for expert in range(1, 4):
                assert torch.equal(expert_tensor(aligned, part, expert), expert_tensor(aligned, part, 0))


@pytest.mark.parametrize("model_type", ["bert_moe", "t5_moe", "mixtral", "gpt_oss"])
def test_alignment_preserves_the_function(model_type, tmp_path) -> None:
    model = build(model_type)
    model.save_pretrained(tmp_path / "moe")
    moe = tanbr.merge.open(tmp_path / "moe")
    aligned = tanbr.merge.open(align(moe, tmp_path / "aligned"))
    again = type(model).from_pretrained(aligned.path)
    if model_type in {"bert_moe", "t5_moe"}:
        for live in (model, again):
            route(live, TaskRouting(torch.tensor([1, 3])))
    torch.testing.assert_close(logits(again), logits(model), rtol=1e-4, atol=1e-4)
    before, after = (expert_tensor(which, which.sites[0].part("down"), 1) for which in (moe, aligned))
    assert not torch.equal(before, after)
