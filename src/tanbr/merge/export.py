"""Export: a stock dense checkpoint that plain transformers loads, and a certificate of what was done."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from tanbr.errors import InputError
from tanbr.merge.blend import fill
from tanbr.merge.certificate import certificate
from tanbr.merge.plan import DensePlan, concatenated
from tanbr.merge.skeleton import skeleton
from tanbr.moe.family import Piece
from tanbr.moe.writing import (
    SHARD_BYTES,
    NewTensor,
    Progress,
    copy_companions,
    new_folder,
    silent,
    write_json,
    write_tensors,
)

if TYPE_CHECKING:
    from tanbr.merge.moe import Moe

Mode: TypeAlias = Literal["average", "concat"]


def export(
    moe: "Moe",
    out: str | Path,
    *,
    blend: ArrayLike | None = None,
    mode: Mode = "average",
    experts: Sequence[int] | None = None,
    certify: bool = True,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress = silent,
) -> Path:
    """Write a dense checkpoint to the new folder `out`; one tensor at a time is in memory.

    `mode="average"` merges by `blend` (K,); `mode="concat"` puts the chosen `experts` side by side, each with 1/k of
    the output, for an FFN k times as wide.
    """
    weights, plan = _average(moe, blend) if mode == "average" else _concat(moe, experts)
    config = skeleton(plan, moe.path, device="meta").config
    dtypes = plan.dtypes(moe.checkpoint)
    pieces: dict[str, list[Piece]] = {}
    for piece in plan.pieces:
        pieces.setdefault(piece.target, []).append(piece)
    tensors = [NewTensor(name, dtypes[name], plan.shapes[name]) for name in sorted(pieces)]

    def chunks() -> Iterator[Tensor]:
        for done, tensor in enumerate(tensors):
            progress(done, len(tensors))
            out_tensor = torch.zeros(tensor.shape, dtype=tensor.dtype)
            for piece in pieces[tensor.name]:
                if mode == "average":
                    moe.fill(out_tensor, piece, weights)
                else:
                    fill(out_tensor, moe.checkpoint, piece, weights)
            yield out_tensor

    with new_folder(out) as folder:
        config.save_pretrained(folder)
        write_tensors(folder, tensors, chunks(), shard_bytes=shard_bytes)
        progress(len(tensors), len(tensors))
        copy_companions(moe.path, folder)
        if certify:
            write_json(folder / "certificate.json", _certified(moe, plan, mode, weights, experts))
    return Path(out)


def _average(moe: "Moe", blend: ArrayLike | None) -> tuple[list[float], DensePlan]:
    if blend is None:
        raise InputError("a merge needs a blend: one weight per expert, summing to 1")
    return moe.check(blend).tolist(), moe.plan


def _concat(moe: "Moe", experts: Sequence[int] | None) -> tuple[list[float], DensePlan]:
    K = moe.num_experts
    chosen = list(experts or ())
    if not chosen or len(set(chosen)) < len(chosen) or not all(0 <= k < K for k in chosen):
        raise InputError(f"concat needs different experts, numbered 0..{K - 1} (got {chosen})")
    weights = [1 / len(chosen) if k in chosen else 0.0 for k in range(K)]
    moe.check(weights)
    pieces = concatenated(moe.plan.pieces, moe.sites, chosen)
    return weights, DensePlan(moe.family, moe.config, moe.sites, pieces)


def _certified(
    moe: "Moe", plan: DensePlan, mode: Mode, weights: list[float], experts: Sequence[int] | None
) -> dict[str, Any]:
    chosen = {"experts": list(experts or ())} if mode == "concat" else {"blend": weights}

    def export_twin(twin: "Moe", folder: Path) -> None:
        same = [1 / twin.num_experts] * twin.num_experts
        export(twin, folder, blend=same, mode=mode, experts=range(min(2, twin.num_experts)), certify=False)

    merging = "regression" if mode == "average" and moe.grams is not None else mode
    return {"mode": merging, **chosen, "dense": plan.config().architectures[0], **certificate(moe, export_twin)}
