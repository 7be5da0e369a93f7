"""Checkpoints whose experts are one expert, its hidden units in another order, or kin of one."""

import numpy as np

import tanbr.merge
from tanbr.merge.align import expert_tensor, permuted, unit_count
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


def related(site, part, expert, own, first):
    return first + 0.1 * own
