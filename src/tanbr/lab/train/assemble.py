"""Experts that were trained apart become one MoE checkpoint: the FFNs side by side, and one of everything else.

Only FFNs can differ between the experts of an MoE. What else differs (attention, norms, embeddings, columns of a head
that several experts have) is refused by name, unless its mean will do; the base's is taken where experts were opened
with `blend_only="ffn"`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from tanbr.errors import CheckpointError, InputError
from tanbr.lab.train.upcycle import filled, layout, moe_config, recipe_of
from tanbr.merge import Moe
from tanbr.merge.blend import weighted_sum
from tanbr.merge.sources import OverBase
from tanbr.moe.family import Piece
from tanbr.moe.writing import Progress, copy_companions, new_folder, silent, write_json, write_tensors
from tanbr.tasks.card import Card, read_card, write_card

Rest: TypeAlias = Literal["refuse", "average"]


def assemble(moe: Moe, out: str | Path, *, rest: Rest = "refuse", progress: Progress = silent) -> list[str]:
    """Write experts over a base as one MoE checkpoint to the new folder `out`; the names of what was averaged.

    Its card names the experts' tasks (their folders' names where nobody named tasks) and the labels of each.
    """
    if not isinstance(moe.source, OverBase):
        raise InputError(f"{moe.path} is an MoE checkpoint already; name a base and its experts")
    recipe = recipe_of(moe.config["model_type"])
    config = moe_config(recipe, moe.config, moe.num_experts)
    dtypes, pieces = moe.plan.dtypes(moe.checkpoint), moe.plan.targets()
    tensors = layout(recipe, {name: (dtypes[name], moe.plan.shapes[name]) for name in pieces}, moe.num_experts)
    ffns = {laid.source for laid in tensors if laid.experts}
    averaged = sorted({piece.target for piece in moe.plan.blended} - {str(name) for name in ffns})
    if averaged and rest == "refuse":
        raise CheckpointError(
            f"the experts differ in {len(averaged)} tensors that are no FFN's ({averaged[0]} for one), of which an MoE "
            "checkpoint has one each: --blend-only ffn keeps the base's, --rest average takes the experts' mean"
        )
    moe.check(None)
    chunks = filled(
        tensors,
        shared=lambda laid: _even(moe, laid.tensor.shape, laid.tensor.dtype, pieces[str(laid.source)]),
        expert=lambda laid, k: _expert(moe, pieces[str(laid.source)][0], k),
        generator=torch.Generator().manual_seed(0),
        progress=progress,
    )
    with new_folder(out) as folder:
        write_json(folder / "config.json", config)
        write_tensors(folder, [laid.tensor for laid in tensors], chunks)
        progress(len(tensors), len(tensors))
        for companions in moe.source.companions:
            copy_companions(companions, folder)
        write_card(folder, card_of(moe))
    return averaged


def card_of(moe: Moe) -> Card:
    """Make the card of experts over a base; an MoE checkpoint has its own."""
    if not isinstance(moe.source, OverBase):
        return read_card(moe.path)
    folders = [Path(name).resolve().name for name in moe.source.names]
    tasks = moe.source.expert_tasks or (tuple(folders) if len(set(folders)) == len(folders) else ())
    return read_card(moe.path).of_experts(tasks, moe.source.expert_labels)


def _expert(moe: Moe, piece: Piece, k: int) -> Tensor:
    if piece.weights is None:
        return moe.experts.one(piece, k).view(piece.shape)
    return moe.checkpoint.tensor(piece.blocks[0][0])  # equal in all


def _even(moe: Moe, shape: tuple[int, ...], dtype: torch.dtype, pieces: Sequence[Piece]) -> Tensor:
    out = torch.empty(shape, dtype=dtype)
    for piece in pieces:
        if piece.weights is None:
            moe.experts.average(out[piece.region], piece, [1 / moe.num_experts] * moe.num_experts)
        else:
            weighted_sum(out[piece.region], moe.checkpoint, piece.blocks, piece.weights)
    return out
