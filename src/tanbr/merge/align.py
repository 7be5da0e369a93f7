"""Permutation alignment: the hidden units of each expert, put in the order of the first expert's.

An FFN computes the same function however its hidden units are ordered, so two experts can agree and still average to
nothing. Units are matched by the Hungarian method on their weights.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from tanbr.errors import InputError
from tanbr.merge.moe import Moe
from tanbr.moe.family import Part, Site
from tanbr.moe.writing import Progress, copy_companions, new_folder, silent, write_json, write_tensors

Orders = list[NDArray[np.int64]]  # (K,) the order of every expert's hidden units (units,)


def unit_count(site: Site) -> int:
    """Count the hidden units of one expert."""
    down = site.part("down")
    if down is None or down.unit_axis is None:
        raise InputError(f"{site.name} has no hidden units to align")
    return down.shape[down.unit_axis]


def expert_tensor(moe: Moe, part: Part, expert: int) -> Tensor:
    """View one expert's tensor of a part, read-only."""
    return moe.checkpoint.blocks([part.blocks[expert]], math.prod(part.shape))[0].view(part.shape)


def unit_weights(moe: Moe, site: Site, expert: int) -> Tensor:
    """Collect the weights of every hidden unit, (units, features); each part counts alike."""
    rows = []
    for part in site.parts:
        if part.unit_axis is not None:  # gate and up may be interleaved
            features = expert_tensor(moe, part, expert).float().movedim(part.unit_axis, 0).reshape(unit_count(site), -1)
            rows.append(features / features.norm().clamp_min(1e-12))
    return torch.cat(rows, dim=1)


def permuted(tensor: Tensor, axis: int, order: NDArray[np.int64]) -> Tensor:
    """Reorder the hidden units (units,) of one tensor."""
    moved = tensor.movedim(axis, 0)
    rows = moved.reshape(len(order), -1)[torch.from_numpy(order)]
    return rows.reshape(moved.shape).movedim(0, axis).contiguous()


def orders(moe: Moe, site: Site) -> Orders:
    """Find the order of every expert's units at a site that comes nearest to the first one's own."""
    fixed = unit_weights(moe, site, 0)
    found: Orders = [np.arange(len(fixed), dtype=np.int64)]
    for expert in range(1, site.experts):
        gain = (fixed @ unit_weights(moe, site, expert).T).numpy()
        found.append(np.asarray(linear_sum_assignment(gain, maximize=True)[1], dtype=np.int64))
    return found


def align(moe: Moe, out: str | Path, *, progress: Progress = silent) -> Path:
    """Write the checkpoint with every expert's units in the order of the first one's; it computes the same."""
    specs = list(moe.checkpoint.specs.values())
    moved = defaultdict[str, list[tuple[Site, Part, int, int]]](list)  # tensor → expert and first element of its blocks
    for site in moe.sites:
        for part in (part for part in site.parts if part.unit_axis is not None):
            for expert, (name, start) in enumerate(part.blocks):
                moved[name].append((site, part, expert, start))
    orders_at = cache(partial(orders, moe))

    def chunks() -> Iterator[Tensor]:
        for done, spec in enumerate(specs):
            progress(done, len(specs))
            values = moe.checkpoint.tensor(spec.name)
            if spec.name in moved:
                values = values.clone()
            for site, part, expert, start in moved[spec.name]:
                block = values.view(-1)[start : start + math.prod(part.shape)].view(part.shape)
                block.copy_(permuted(block, part.unit_axis or 0, orders_at(site)[expert]))
            yield values

    with new_folder(out) as folder:
        write_json(folder / "config.json", moe.checkpoint.config)
        write_tensors(folder, specs, chunks())
        progress(len(specs), len(specs))
        copy_companions(moe.path, folder)
    return Path(out)
