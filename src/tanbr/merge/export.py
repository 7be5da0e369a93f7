"""Export: a stock dense checkpoint that plain transformers loads, a certificate of what was done, and a model card.

The certificate says where the checkpoint came from, what was folded, and how the identical-experts test ended: a tiny
twin of the model (same family, same flags, random weights) whose experts are all the same must give the same logits
before and after its export. It shows that the dense class can hold the merge and that every factor was carried over; it
says nothing about the quality of a merge. Experts over a base are dense already, and need no such test.
"""

import importlib.metadata
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from transformers import AutoConfig
from transformers.utils import logging

from tanbr.errors import CheckpointError
from tanbr.merge.skeleton import skeleton
from tanbr.merge.sources import MoeCheckpoint
from tanbr.moe.checkpoint import Checkpoint, understood
from tanbr.moe.families import model_class
from tanbr.moe.layer import MoeSite, TaskRouting, route
from tanbr.moe.writing import Progress, copy_companions, new_folder, silent, write_json, write_tensors

if TYPE_CHECKING:
    from tanbr.merge.moe import Moe

TWIN_EXPERTS = 4
TOLERANCE = 1e-5  # of the largest logit


def export(
    moe: "Moe",
    blend: ArrayLike,
    out: str | Path,
    *,
    certify: bool = True,
    about: "About | None" = None,
    progress: Progress = silent,
) -> Path:
    """Write the merge of a blend (K,) to the new folder `out`; one tensor at a time is in memory."""
    weights = moe.check(blend).tolist()
    config = skeleton(moe.plan, device="meta").config
    tensors = list(moe.plan.specs.values())

    def chunks() -> Iterator[Tensor]:
        for done, (_, tensor) in enumerate(moe.tensors(weights)):
            progress(done, len(tensors))
            yield tensor

    with new_folder(out) as folder:
        config.save_pretrained(folder)
        write_tensors(folder, tensors, chunks())
        progress(len(tensors), len(tensors))
        for companions in moe.source.companions:
            copy_companions(companions, folder)
        if certify:
            certify_to(folder, moe, weights, dense=config.architectures[0], title=Path(out).name, about=about)
    return Path(out)


@dataclass(frozen=True)
class About:
    """What only the caller knows of an export."""

    names: Sequence[str] = ()  # (K,) of the experts; their tasks, folders or numbers if none are given
    note: str = ""  # a sentence on where the blend comes from
    files: Mapping[str, str] = field(default_factory=dict)  # more files: name → text


def certify_to(
    folder: Path, moe: "Moe", blend: list[float], *, dense: str | None, title: str, about: About | None
) -> None:
    """Write certificate and model card of a dense model, or of an adapter if its class is None."""
    about, source = about or About(), moe.source
    certificate = {
        "method": str(moe.method),
        "blend": blend,
        "dense": dense,
        "source": {
            "family": moe.family.model_type,
            "class": moe.config["architectures"][0],
            "experts": moe.num_experts,
            "sha256": source.checkpoint.digests(),
        },
        "folds": [{"site": site.name, "scale": site.fold.scale, "reason": site.fold.reason} for site in moe.sites],
        "identical_experts": _identical_experts(moe) if moe.family.experts else None,  # a dense class stays as it is
        "versions": {name: importlib.metadata.version(name) for name in ("tanbr", "torch", "transformers")},
    }
    write_json(folder / "certificate.json", certificate)
    for name, text in {"README.md": _model_card(moe, certificate, title, about), **about.files}.items():
        (folder / name).write_text(text, encoding="utf-8")


def _model_card(moe: "Moe", certificate: Mapping[str, Any], title: str, about: About) -> str:
    """Say what was merged, as the hub's model cards do; no place on this machine is named."""
    source, dense, test = moe.source, certificate["dense"], certificate["identical_experts"]
    base = json.dumps(public_name(source.checkpoint.path), ensure_ascii=False)  # as YAML has it, too
    names = about.names or source.expert_tasks or [public_name(Path(name)) for name in source.names[: source.trained]]
    names = [*names, *["base"] * source.with_base][: source.count]
    weights = sorted(zip(certificate["blend"], names, strict=True), key=lambda pair: -pair[0])
    rows = "\n".join(f"| {' '.join(name.split()).replace('|', '/')} | {x:.4f} |" for x, name in weights if x)
    tested = f"; the identical-experts test ended with a difference of {test['max_difference']:.1g}" if test else ""
    library, kind = ("transformers", "merge") if dense else ("peft", "adapter")
    load = f"from transformers import {dense}\n\nmodel = {dense}.from_pretrained(" if dense else (
        "from peft import PeftModel\n\nmodel = PeftModel.from_pretrained(base, "
    )  # fmt: skip
    return f"""---
library_name: {library}
base_model: {base}
base_model_relation: {kind}
tags: [merge, tanbr]
---

# {title}

{" ".join([f"{dense or 'One LoRA adapter'}, merged by tanbr from {moe.num_experts} experts.", about.note]).strip()}

| expert | weight |
|---|---:|
{rows}

- **Method:** `{certificate["method"]}`; experts that are not in the table have weight 0.
- **Certificate:** `certificate.json` has the SHA-256 of every file that was read, and what was folded{tested}.

```python
{load}"{title}")
```
"""


def public_name(path: Path) -> str:
    """Name a model by its hub id or its folder, as other readers know it."""
    place = path.resolve()
    fetched = re.search(r"models--([^/]+?)--([^/]+)", place.as_posix())  # where the hub's client keeps it
    return f"{fetched[1]}/{fetched[2]}" if fetched else place.name


def _identical_experts(moe: "Moe") -> dict[str, Any]:
    """Compare the logits of the twin with those of its export, both loaded by transformers."""
    with tempfile.TemporaryDirectory() as scratch, _quiet(), understood(moe.checkpoint):
        source, equal, dense = (Path(scratch) / name for name in ("source", "equal", "dense"))
        name = moe.config["architectures"][0]
        model_class(name)(_twin_config(moe)).save_pretrained(source)
        _write_equal(type(moe)(MoeCheckpoint(Checkpoint(source))), equal)
        twin = type(moe)(MoeCheckpoint(Checkpoint(equal)))
        export(twin, [1 / twin.num_experts] * twin.num_experts, dense, certify=False)
        before = _logits(model_class(name).from_pretrained(equal))
        after = _logits(model_class(twin.plan.config().architectures[0]).from_pretrained(dense))
    difference, largest = float((before - after).abs().max()), float(before.abs().max())
    if not difference <= TOLERANCE * max(largest, 1.0):
        raise CheckpointError(
            f"the {moe.family.model_type} family failed its own test: with identical experts the dense model's logits "
            f"are off by {difference:.2g}; please report this with the versions of tanbr and transformers"
        )
    return {"max_difference": difference, "max_logit": largest, "tolerance": TOLERANCE, "layers": len(twin.sites)}


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
    write_tensors(folder, specs, [values[spec.name].to(spec.dtype) for spec in specs])


@torch.no_grad()
def _logits(model: Any) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, model.config.vocab_size, (2, 9), generator=generator)
    if any(isinstance(module, MoeSite) for module in model.modules()):
        route(model, TaskRouting(torch.tensor([0, 1])))
    decodes = hasattr(model, "get_decoder") and model.config.is_encoder_decoder
    output = model.eval()(input_ids=ids, **({"decoder_input_ids": ids[:, :5]} if decodes else {}))
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' warnings about a tiny random model to itself, and the random state whole."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        logging.set_verbosity(level)
