"""Export: a stock dense checkpoint that plain transformers loads, a model card, and a certificate of what was done.

The certificate says where the checkpoint came from, which files were read, and which factors were folded into weights.
"""

import importlib.metadata
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike
from torch import Tensor

from tanbr.merge.skeleton import skeleton
from tanbr.moe.writing import Progress, copy_companions, new_folder, silent, write_json, write_tensors

if TYPE_CHECKING:
    from tanbr.merge.moe import Moe


def export(
    moe: "Moe",
    blend: ArrayLike,
    out: str | Path,
    *,
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
        "versions": {name: importlib.metadata.version(name) for name in ("tanbr", "torch", "transformers")},
    }
    write_json(folder / "certificate.json", certificate)
    for name, text in {"README.md": _model_card(moe, certificate, title, about), **about.files}.items():
        (folder / name).write_text(text, encoding="utf-8")


def _model_card(moe: "Moe", certificate: Mapping[str, Any], title: str, about: About) -> str:
    """Say what was merged, as the hub's model cards do; no place on this machine is named."""
    source, dense = moe.source, certificate["dense"]
    base = json.dumps(public_name(source.checkpoint.path), ensure_ascii=False)  # as YAML has it, too
    names = about.names or source.expert_tasks or [public_name(Path(name)) for name in source.names[: source.trained]]
    names = [*names, *["base"] * source.with_base][: source.count]
    weights = sorted(zip(certificate["blend"], names, strict=True), key=lambda pair: -pair[0])
    rows = "\n".join(f"| {' '.join(name.split()).replace('|', '/')} | {x:.4f} |" for x, name in weights if x)
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
- **Certificate:** `certificate.json` has the SHA-256 of every file that was read, and what was folded.

```python
{load}"{title}")
```
"""


def public_name(path: Path) -> str:
    """Name a model by its hub id or its folder, as other readers know it."""
    place = path.resolve()
    fetched = re.search(r"models--([^/]+?)--([^/]+)", place.as_posix())  # where the hub's client keeps it
    return f"{fetched[1]}/{fetched[2]}" if fetched else place.name
