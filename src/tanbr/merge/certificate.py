"""What a merged checkpoint can show for itself: where it came from, what was folded, and the identical-experts test.

The test: a tiny twin of the model (same family, same flags, random weights) whose experts are all the same must give
the same logits before and after it goes through the very code that wrote the export. It shows that the dense class can
hold the merge and that every factor was carried over; it says nothing about the quality of a merge.
"""

import importlib.metadata
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig
from transformers.utils import logging

from tanbr.errors import CheckpointError
from tanbr.moe.checkpoint import Checkpoint, understood
from tanbr.moe.families import CLASSES
from tanbr.moe.family import Site
from tanbr.moe.layer import MoeSite, TaskRouting, route
from tanbr.moe.writing import NewTensor, write_tensors

if TYPE_CHECKING:
    from tanbr.merge.moe import Moe

TWIN_EXPERTS = 4
TOLERANCE = 1e-5  # of the largest logit


def certificate(moe: "Moe", export: Callable[["Moe", Path], None]) -> dict[str, Any]:
    """State the inputs, the folds and the result of the identical-experts test, run through `export`."""
    return {
        "source": moe.source.describe(),
        "folds": [{"site": site.name, "scale": site.fold.scale, "reason": site.fold.reason} for site in moe.sites],
        "identical_experts": identical_weights(moe) or identical_experts(moe, export),
        "note": moe.family.note,
        "versions": {name: importlib.metadata.version(name) for name in ("tanbr", "torch", "transformers")},
    }


def identical_experts(moe: "Moe", export: Callable[["Moe", Path], None]) -> dict[str, Any]:
    """Compare the logits of the twin with those of its export, both loaded by transformers."""
    with tempfile.TemporaryDirectory() as scratch, _quiet(), understood(moe.checkpoint):
        source, equal, dense = (Path(scratch) / name for name in ("source", "equal", "dense"))
        name = moe.config["architectures"][0]
        model = _model_class(name)(_twin_config(moe))
        model.save_pretrained(source)
        _write_equal(type(moe)(Checkpoint(source)), equal)
        twin = type(moe)(Checkpoint(equal))
        export(twin, dense)
        before = _logits(_model_class(name).from_pretrained(equal))
        after = _logits(_model_class(twin.plan.config().architectures[0]).from_pretrained(dense))
    difference, largest = float((before - after).abs().max()), float(before.abs().max())
    if not difference <= TOLERANCE * max(largest, 1.0):
        raise CheckpointError(
            f"the {moe.family.model_type} family failed its own test: with identical experts the dense model's logits "
            f"are off by {difference:.2g}; please report this with the versions of tanbr and transformers"
        )
    return {"max_difference": difference, "max_logit": largest, "tolerance": TOLERANCE, "layers": len(twin.sites)}


def identical_weights(moe: "Moe") -> dict[str, Any] | None:
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


def _model_class(name: str) -> Any:
    return CLASSES.get(name) or getattr(transformers, name)


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
    for site in moe.sites:
        _equalise(site, values)
    folder.mkdir()
    AutoConfig.for_model(**moe.config).save_pretrained(folder)
    write_tensors(
        folder,
        [NewTensor(spec.name, spec.dtype, spec.shape) for spec in specs],
        [values[spec.name].to(spec.dtype) for spec in specs],
    )


def _equalise(site: Site, values: dict[str, Tensor]) -> None:
    for part in site.parts:
        size = torch.Size(part.shape).numel()
        first = _block(values, part.blocks[0], size).clone()
        for block in part.blocks:
            _block(values, block, size).copy_(first)


def _block(values: dict[str, Tensor], block: tuple[str, int], size: int) -> Tensor:
    name, start = block
    return values[name].view(-1)[start : start + size]


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
