"""Permutation alignment: the hidden units of each expert, put in the order of a reference expert's.

An FFN computes the same function however its hidden units are ordered, so two experts can agree and still average to
nothing. Units are matched by the Hungarian method on their weights.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from tanbr.errors import InputError
from tanbr.merge.moe import Moe
from tanbr.moe.family import Part, Site
from tanbr.moe.writing import NewTensor, Progress, copy_companions, new_folder, silent, write_json, write_tensors

Orders = list[NDArray[np.int64]]  # (K,) the order of every expert's hidden units (units,)


def unit_count(site: Site) -> int:
    """Count the hidden units of one expert."""
    down = site.part("down")
    if down is None or down.unit_axis is None:
        raise InputError(f"{site.name} has no hidden units to align")
    return down.shape[down.unit_axis]


def expert_tensor(moe: Moe, part: Part, expert: int) -> Tensor:
    """View one expert's tensor of a part, read-only."""
    return moe.checkpoint.blocks([part.blocks[expert]], torch.Size(part.shape).numel())[0].view(part.shape)


def by_unit(tensor: Tensor, axis: int, units: int) -> Tensor:
    """Bring a tensor into (units, …): all that belongs to a hidden unit in one row (gate and up may be interleaved)."""
    return tensor.movedim(axis, 0).reshape(units, -1)


def unit_weights(moe: Moe, site: Site, expert: int) -> Tensor:
    """Collect the weights of every hidden unit, (units, features); each part counts alike."""
    units = unit_count(site)
    rows = []
    for part in site.parts:
        if part.unit_axis is not None:
            features = by_unit(expert_tensor(moe, part, expert).float(), part.unit_axis, units)
            rows.append(features / features.norm().clamp_min(1e-12))
    return torch.cat(rows, dim=1)


def permuted(tensor: Tensor, axis: int, units: int, order: NDArray[np.int64]) -> Tensor:
    """Reorder the hidden units of one tensor."""
    moved = tensor.movedim(axis, 0)
    rows = moved.reshape(units, -1)[torch.from_numpy(order)]
    return rows.reshape(moved.shape).movedim(0, axis).contiguous()


def orders(moe: Moe, site: Site, *, reference: int = 0) -> Orders:
    """Find the order of every expert's units at a site that comes nearest to the reference's own."""
    fixed = unit_weights(moe, site, reference)
    found: Orders = [np.arange(len(fixed), dtype=np.int64)] * site.experts
    for expert in (k for k in range(site.experts) if k != reference):
        gain = (fixed @ unit_weights(moe, site, expert).T).numpy()
        found[expert] = np.asarray(linear_sum_assignment(gain, maximize=True)[1], dtype=np.int64)
    return found


def align(moe: Moe, out: str | Path, *, reference: int = 0, progress: Progress = silent) -> Path:
    """Write the checkpoint with every expert's units in the order of the reference expert's; it computes the same."""
    if not 0 <= reference < moe.num_experts:
        raise InputError(f"reference must be an expert, 0..{moe.num_experts - 1} (got {reference})")
    specs = list(moe.checkpoint.specs.values())
    owners: dict[str, list[tuple[Site, Part]]] = {}
    for site in moe.sites:
        for part in site.parts:
            for name in {block[0] for block in part.blocks}:
                if part.unit_axis is not None:
                    owners.setdefault(name, []).append((site, part))
    found: dict[str, Orders] = {}

    def chunks() -> Iterator[Tensor]:
        for done, spec in enumerate(specs):
            progress(done, len(specs))
            values = moe.checkpoint.tensor(spec.name)
            if spec.name in owners:
                values = values.clone()
                for site, part in owners[spec.name]:
                    if site.name not in found:
                        found[site.name] = orders(moe, site, reference=reference)
                    _reorder(values, spec.name, part, unit_count(site), found[site.name])
            yield values

    with new_folder(out) as folder:
        write_json(folder / "config.json", moe.checkpoint.config)
        write_tensors(folder, [NewTensor(spec.name, spec.dtype, spec.shape) for spec in specs], chunks())
        progress(len(specs), len(specs))
        copy_companions(moe.path, folder)
    return Path(out)


def _reorder(values: Tensor, name: str, part: Part, units: int, order: Orders) -> None:
    """Reorder, in a copy of one tensor, the blocks that belong to a part."""
    size = torch.Size(part.shape).numel()
    for expert, (tensor, start) in enumerate(part.blocks):
        if tensor == name and part.unit_axis is not None:
            block = values.view(-1)[start : start + size].view(part.shape)
            block.copy_(permuted(block, part.unit_axis, units, order[expert]))
