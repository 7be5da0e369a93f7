"""Experts that share an ancestor are told apart from unrelated ones, and from the same ones in another order."""

import math

import numpy as np
import pytest
import torch

import tanbr.merge
from tanbr.merge.inspect import glance, inspect
from tanbr.moe.writing import write_json, write_tensors


def rewritten(moe, folder, change):
    """Copy a checkpoint with every expert's tensors changed: change(site, part, expert, own, first) → tensor."""
    values = {name: moe.checkpoint.tensor(name).clone() for name in moe.checkpoint.specs}

    def block_of(part, expert):
        name, start = part.blocks[expert]
        return values[name].view(-1)[start : start + math.prod(part.shape)].view(part.shape)

    for site in moe.sites:
        for part in site.parts.values():
            first = block_of(part, 0).clone()
            for expert in range(moe.num_experts):
                block = block_of(part, expert)
                block.copy_(change(site, part, expert, block.clone(), first))
    folder.mkdir()
    write_json(folder / "config.json", moe.checkpoint.config)
    write_tensors(folder, list(moe.checkpoint.specs.values()), list(values.values()))
    return tanbr.merge.open(folder)


def shuffled(site, part, expert, own, first):
    """Every expert is the first, its hidden units in another order."""
    if expert == 0 or part.unit_axis is None:
        return first
    order = np.random.default_rng([expert, len(site.name)]).permutation(first.shape[part.unit_axis])
    return first.index_select(part.unit_axis, torch.from_numpy(order))


@pytest.mark.parametrize(
    "moe", ["bert_moe", "t5_moe", "qwen2_moe", "granitemoe", "deepseek_v3", "gpt_oss"], indirect=True
)
def test_verdicts(moe, tmp_path) -> None:
    mixed = rewritten(moe, tmp_path / "mixed", shuffled)
    for unrelated in (moe, mixed):
        assert inspect(unrelated).verdict == glance(unrelated).verdict == "do not merge"
    close = rewritten(moe, tmp_path / "kin", lambda site, part, expert, own, first: first + 0.1 * own)
    kin = inspect(close)
    assert kin.verdict == glance(close).verdict == "merge"
    assert min(kin.sites.values()) > 0.9
