"""Export: a stock dense checkpoint that plain transformers loads, and a certificate of what was done.

The certificate names the experts with their weights, which files were read, and which factors were folded into weights.
"""

import importlib.metadata
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

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
        certify_to(folder, moe, weights, dense=config.architectures[0], about=about)
    return Path(out)


@dataclass(frozen=True)
class About:
    """What only the caller knows of an export."""

    names: Sequence[str] = ()  # (K,) of the experts; their tasks, folders or numbers if none are given
    note: str = ""  # a sentence on where the blend comes from
    files: Mapping[str, str] = field(default_factory=dict)  # more files: name → text


def certify_to(folder: Path, moe: "Moe", blend: list[float], *, dense: str | None, about: About | None) -> None:
    """Write the certificate of a dense model, or of an adapter if its class is None; it names no place here."""
    about, source = about or About(), moe.source
    names = about.names or source.expert_tasks or [public_name(Path(name)) for name in source.names[: source.trained]]
    certificate = {
        "about": about.note,
        "base": public_name(source.checkpoint.path),
        "experts": [*names, *["base"] * source.with_base][: source.count],
        "blend": blend,
        "method": str(moe.method),
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
    for name, text in about.files.items():
        (folder / name).write_text(text, encoding="utf-8")


def public_name(path: Path) -> str:
    """Name a model by its hub id or its folder, as other readers know it."""
    place = path.resolve()
    fetched = re.search(r"models--([^/]+?)--([^/]+)", place.as_posix())  # where the hub's client keeps it
    return f"{fetched[1]}/{fetched[2]}" if fetched else place.name
