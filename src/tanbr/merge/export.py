"""Export: a stock dense checkpoint that plain transformers loads, and a certificate of what was done.

The certificate says where the checkpoint came from, what was folded, and how the identical-experts test ended: a tiny
twin of the model (same family, same flags, random weights) whose experts are all the same must give the same logits
before and after it goes through the very code that wrote the export. It shows that the dense class can hold the merge
and that every factor was carried over; it says nothing about the quality of a merge.
"""

import importlib.metadata
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from transformers import AutoConfig
from transformers.utils import logging

from tanbr.errors import CheckpointError, InputError
from tanbr.merge.skeleton import DensePlan, concatenated, skeleton
from tanbr.merge.stream import stream
from tanbr.moe.checkpoint import Checkpoint, understood
from tanbr.moe.families import model_class
from tanbr.moe.layer import MoeSite, TaskRouting, route
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

TWIN_EXPERTS = 4
TOLERANCE = 1e-5  # of the largest logit


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
            chosen = {"experts": list(experts or ())} if mode == "concat" else {"blend": weights}
            about = {"mode": str(moe.method) if mode == "blend" else mode, **chosen, "dense": config.architectures[0]}
            write_json(folder / "certificate.json", about | _certificate(moe, mode))
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


def _certificate(moe: "Moe", mode: Mode) -> dict[str, Any]:
    """State the inputs, the folds and the result of the identical-experts test."""
    return {
        "source": moe.source.describe(),
        "folds": [{"site": site.name, "scale": site.fold.scale, "reason": site.fold.reason} for site in moe.sites],
        "identical_experts": _identical_weights(moe) or _identical_experts(moe, mode),
        "note": moe.family.note,
        "versions": {name: importlib.metadata.version(name) for name in ("tanbr", "torch", "transformers")},
    }


def _identical_experts(moe: "Moe", mode: Mode) -> dict[str, Any]:
    """Compare the logits of the twin with those of its export, both loaded by transformers."""
    with tempfile.TemporaryDirectory() as scratch, _quiet(), understood(moe.checkpoint):
        source, equal, dense = (Path(scratch) / name for name in ("source", "equal", "dense"))
        name = moe.config["architectures"][0]
        model_class(name)(_twin_config(moe)).save_pretrained(source)
        _write_equal(type(moe)(Checkpoint(source)), equal)
        twin = type(moe)(Checkpoint(equal))
        same = [1 / twin.num_experts] * twin.num_experts
        export(twin, dense, blend=same, mode=mode, experts=range(min(2, twin.num_experts)), certify=False)
        before = _logits(model_class(name).from_pretrained(equal))
        after = _logits(model_class(twin.plan.config().architectures[0]).from_pretrained(dense))
    difference, largest = float((before - after).abs().max()), float(before.abs().max())
    if not difference <= TOLERANCE * max(largest, 1.0):
        raise CheckpointError(
            f"the {moe.family.model_type} family failed its own test: with identical experts the dense model's logits "
            f"are off by {difference:.2g}; please report this with the versions of tanbr and transformers"
        )
    return {"max_difference": difference, "max_logit": largest, "tolerance": TOLERANCE, "layers": len(twin.sites)}


def _identical_weights(moe: "Moe") -> dict[str, Any] | None:
    """Merge K copies of the first expert, tensor by tensor, and compare with it; None for a source that has a twin."""
    source = moe.source.identical()
    if source is None:
        return None
    same, K = type(moe)(source), moe.num_experts
    worst = 0.0  # in units of what rounding allows
    one_hot = [1.0] + [0.0] * (K - 1)
    for (name, even), (_, first) in zip(same.tensors(changing=True), same.tensors(one_hot, changing=True), strict=True):
        bound = 2 * (K + 1) * torch.finfo(even.dtype).eps * first.abs().max().double()
        difference = (even.double() - first.double()).abs().max()
        if not difference <= bound:
            raise CheckpointError(
                f"the merge failed its own test: of {K} identical experts {name} is off by {float(difference):.2g}; "
                "please report this with the versions of tanbr and torch"
            )
        worst = max(worst, float(difference / bound) if bound else 0.0)
    return {"max_difference": worst, "tolerance": 1.0, "unit": "rounding of K + 1 sums", "layers": len(moe.sites)}


def _twin_config(moe: "Moe") -> Any:
    changes = {key: value for key, value in moe.family.twin.items() if key in moe.config}
    changes |= {moe.family.count: TWIN_EXPERTS, "dtype": "float32"}
    config = AutoConfig.for_model(**moe.config | changes)
    config.architectures = moe.config["architectures"]
    return config


def _write_equal(moe: "Moe", folder: Path) -> None:
    """Rewrite a twin: weights large enough to matter, every expert like the first, a router that prefers none."""
    generator = torch.Generator().manual_seed(0)
    specs = list(moe.checkpoint.specs.values())
    kept = {block[0] for piece in moe.plan.pieces for block in piece.blocks}
    values = {
        spec.name: torch.randn(spec.shape, generator=generator) * (0.3 if len(spec.shape) > 1 else 0.1)
        + (1.0 if spec.name.endswith("norm.weight") or "LayerNorm.weight" in spec.name else 0.0)
        if spec.name in kept
        else torch.zeros(spec.shape)
        for spec in specs
    }
    for part in (part for site in moe.sites for part in site.parts):
        size = torch.Size(part.shape).numel()
        blocks = [values[name].view(-1)[start : start + size] for name, start in part.blocks]
        for block in blocks[1:]:
            block.copy_(blocks[0])
    folder.mkdir()
    AutoConfig.for_model(**moe.config).save_pretrained(folder)
    write_tensors(
        folder,
        [NewTensor(spec.name, spec.dtype, spec.shape) for spec in specs],
        [values[spec.name].to(spec.dtype) for spec in specs],
    )


@torch.no_grad()
def _logits(model: Any) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, model.config.vocab_size, (2, 9), generator=generator)
    if any(isinstance(module, MoeSite) for module in model.modules()):
        route(model, TaskRouting(torch.tensor([0, 1])))
    more = (
        {"decoder_input_ids": ids[:, :5]} if hasattr(model, "get_decoder") and model.config.is_encoder_decoder else {}
    )
    output = model.eval()(input_ids=ids, **more)
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' progress bars and warnings about a tiny random model to itself, and the random state whole."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
