"""Copies of the embedded model that differ in one thing."""

from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from tanbr.moe import embedded


def copy(folder: Path, change: Callable[[str, Tensor], Tensor | None] | None = None) -> Path:
    """Copy the embedded model; `change` gives the tensor to write under a name, or None to leave it out."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in embedded.path().iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    if change is not None:
        weights = folder / "model.safetensors"
        changed = {name: change(name, value) for name, value in load_file(weights).items()}
        kept = {name: value.contiguous() for name, value in changed.items() if value is not None}
        save_file(kept, weights, metadata={"format": "pt"})
    return folder


def of_experts(name: str) -> bool:
    """Whether a tensor holds the experts (K, …)."""
    return ".intermediate." in name or (".output." in name and ".attention." not in name and "Norm" not in name)
