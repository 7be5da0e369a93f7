"""`tanbr.open`: an MoE checkpoint as one object, and the dense models that come out of it."""

from pathlib import Path
from typing import Any

import torch
import transformers
from numpy.typing import ArrayLike
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.initialization import no_init_weights

from tanbr.errors import CheckpointError, InputError
from tanbr.merge.blend import check_finite, fill
from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.families import family_of
from tanbr.moe.family import Piece, Site
from tanbr.types import as_blend


class Moe:
    """An MoE checkpoint that can be merged; no expert is in memory."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.family = family_of(checkpoint.config)
        self.sites: list[Site] = self.family.sites(checkpoint)
        self.pieces: list[Piece] = self.family.plan(checkpoint, self.sites)
        self._blended = [piece for piece in self.pieces if piece.weights is None]
        self._trusted: set[int] = set()

    @property
    def path(self) -> Path:
        """The checkpoint's folder."""
        return self.checkpoint.path

    @property
    def num_experts(self) -> int:
        """K."""
        return self.sites[0].experts

    @property
    def config(self) -> dict[str, Any]:
        """The checkpoint's own configuration."""
        return self.checkpoint.config

    def dense(self, blend: ArrayLike | None = None) -> Any:
        """Build the dense transformers model, in eval mode, with `blend` merged into it (all experts alike if None)."""
        K = self.num_experts
        weights = as_blend([1 / K] * K if blend is None else blend, experts=K)
        self._trust(weights.tolist())
        config = dense_config(self)
        with no_init_weights():
            model = getattr(transformers, config.architectures[0])._from_config(config, dtype=config.dtype)
        with torch.no_grad():
            for piece in self.pieces:
                fill(locate(model, piece.target), self.checkpoint, piece, weights.tolist())
        return model.eval()

    def merge_into(self, model: nn.Module, blend: ArrayLike) -> None:
        """Merge a blend (K,) into a dense model in place; only the FFNs' tensors change."""
        weights = as_blend(blend, experts=self.num_experts).tolist()
        outputs = [(locate(model, piece.target), piece) for piece in self._blended]
        self._trust(weights)
        with torch.no_grad():
            for out, piece in outputs:
                fill(out, self.checkpoint, piece, weights)

    def _trust(self, weights: list[float]) -> None:
        """Look through each expert once, before it is first merged: a live model never gets a NaN."""
        for expert in (k for k, weight in enumerate(weights) if weight and k not in self._trusted):
            check_finite(self.checkpoint, self._blended, expert)
            self._trusted.add(expert)


def open(path: str | Path) -> Moe:  # noqa: A001
    """Open an MoE checkpoint: a folder with a config.json and safetensors files."""
    return Moe(Checkpoint(path))


def locate(model: nn.Module, target: str) -> Tensor:
    """Find the tensor of a live dense model that holds `target`."""
    try:
        return model.get_parameter(target)
    except AttributeError:
        raise InputError(
            f"{type(model).__name__} has no {target}; merge into the model that dense() gives, or one of its class"
        ) from None


def dense_config(moe: Moe) -> Any:
    """Derive the dense model's configuration."""
    source = moe.config
    family = moe.family
    known = AutoConfig.for_model(family.dense).to_dict()
    kept = {key: value for key, value in source.items() if key in known} | family.config(dict(source))
    config = AutoConfig.for_model(**kept | {"model_type": family.dense})
    architectures = source.get("architectures") or []
    if len(architectures) != 1 or not architectures[0].startswith(family.prefix[0]):
        raise CheckpointError(f"config.json must name one {family.prefix[0]} architecture (got {architectures})")
    config.architectures = [family.prefix[1] + architectures[0].removeprefix(family.prefix[0])]
    return config
