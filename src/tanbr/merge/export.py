"""Export: a stock dense checkpoint that plain transformers loads, and a certificate of what was done."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from numpy.typing import ArrayLike
from torch import Tensor

from tanbr.errors import InputError
from tanbr.merge.certificate import certificate
from tanbr.merge.plan import DensePlan, concatenated
from tanbr.merge.skeleton import skeleton
from tanbr.merge.stream import stream
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

Mode: TypeAlias = Literal["blend", "concat"]


def export(
    moe: "Moe",
    out: str | Path,
    *,
    blend: ArrayLike | None = None,
    mode: Mode = "blend",
    experts: Sequence[int] | None = None,
    certify: bool = True,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress = silent,
) -> Path:
    """Write a dense checkpoint to the new folder `out`; one tensor at a time is in memory.

    `mode="blend"` merges by `blend` (K,); `mode="concat"` puts the chosen `experts` side by side, each with 1/k of
    the output, for an FFN k times as wide.
    """
    weights, plan = _blend(moe, blend) if mode == "blend" else _concat(moe, experts)
    config = skeleton(plan, moe.checkpoint, device="meta").config
    dtypes = plan.dtypes(moe.checkpoint)
    tensors = [NewTensor(name, dtypes[name], plan.shapes[name]) for name in plan.targets()]

    def chunks() -> Iterator[Tensor]:
        for done, (_, tensor) in enumerate(stream(plan, moe.checkpoint, moe.method, weights)):
            progress(done, len(tensors))
            yield tensor

    with new_folder(out) as folder:
        config.save_pretrained(folder)
        write_tensors(folder, tensors, chunks(), shard_bytes=shard_bytes)
        progress(len(tensors), len(tensors))
        for companions in moe.source.companions:
            copy_companions(companions, folder)
        if certify:
            write_json(folder / "certificate.json", _certified(moe, plan, mode, weights, experts))
    return Path(out)


def _blend(moe: "Moe", blend: ArrayLike | None) -> tuple[list[float], DensePlan]:
    if blend is None:
        raise InputError("a merge needs a blend: one weight per expert, summing to 1")
    return moe.check(blend).tolist(), moe.plan


def _concat(moe: "Moe", experts: Sequence[int] | None) -> tuple[list[float], DensePlan]:
    K = moe.num_experts
    if not any(part.unit_axis is not None for site in moe.sites for part in site.parts):
        raise InputError("these experts are no FFNs of an MoE, and cannot be put side by side; merge a blend of them")
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

    merging = str(moe.method) if mode == "blend" else mode
    return {"mode": merging, **chosen, "dense": plan.config().architectures[0], **certificate(moe, export_twin)}
