"""`tanbr.open`: an MoE checkpoint as one object, and the dense models that come out of it."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from numpy.typing import ArrayLike
from torch import Tensor, nn

from tanbr.errors import CheckpointError
from tanbr.merge.blend import check_finite, fill
from tanbr.merge.export import export
from tanbr.merge.plan import DensePlan
from tanbr.merge.regression import Grams
from tanbr.merge.skeleton import locate, skeleton
from tanbr.moe.checkpoint import Checkpoint, TensorFile
from tanbr.moe.families import family_of, read_settings
from tanbr.moe.family import Piece, Settings, Site
from tanbr.types import Blend, as_blend

UNIT = 2.0**-24  # half the spacing of float32 at 1
FETCHED = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja", "LICENSE*"]


@dataclass(frozen=True, eq=False)
class Merged:
    """What a model holds after a merge."""

    blend: Blend  # (K,)
    drift: float  # bound on the rounding error, relative to the largest weight of the tensor's experts
    incremental: bool  # whether the model's last blend was updated rather than read anew


class Moe:
    """An MoE checkpoint that can be merged; no expert is in memory.

    With `regression`, merges are by regression (`merge/regression.py`) instead of by weighted averages.
    """

    def __init__(self, checkpoint: Checkpoint, *, regression: bool = False) -> None:
        self.checkpoint = checkpoint
        self.family = family_of(checkpoint.config)
        self.config: Settings = read_settings(checkpoint.config)
        self.sites: list[Site] = self.family.sites(checkpoint, self.config)
        pieces = self.family.plan(checkpoint, self.config, self.sites)
        self.plan = DensePlan(self.family, self.config, self.sites, pieces)
        self.grams: Grams | None = None
        if regression:
            self.grams = Grams(self.path, self.plan.blended, experts=self.num_experts, digest=self.fingerprint)
        self._trusted: set[int] = set()
        self._served: WeakKeyDictionary[nn.Module, Merged] = WeakKeyDictionary()

    @property
    def path(self) -> Path:
        """The checkpoint's folder."""
        return self.checkpoint.path

    @property
    def files(self) -> list[TensorFile]:
        """The files that a merge reads."""
        return self.checkpoint.files + ([] if self.grams is None else self.grams.checkpoint.files)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the weights."""
        digests = [file.digest() for file in self.checkpoint.files]
        return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

    @property
    def num_experts(self) -> int:
        """K."""
        return self.sites[0].experts

    def dense(self, blend: ArrayLike | None = None) -> Any:
        """Build the dense transformers model, in eval mode, with `blend` merged into it (all experts alike if None)."""
        weights = self.check(blend)
        model = skeleton(self.plan, self.path)
        with torch.no_grad():
            for target in self.plan.padded:
                locate(model, target).zero_()
            for piece in self.plan.pieces:
                self.fill(locate(model, piece.target), piece, weights.tolist())
        return model.eval()

    def merge_into(self, model: nn.Module, blend: ArrayLike, *, max_drift: float = 0.0) -> Merged:
        """Merge a blend (K,) into a dense model in place; only the FFNs' tensors change.

        With `max_drift` > 0 a blend that differs from the model's last one in a few experts is reached by adding those
        experts' differences, as long as the bound on the rounding error so far, relative to the largest weight, stays
        below it; then an exact merge starts afresh. Nothing else may write to the model's FFNs in between.
        """
        weights = self.check(blend)
        outputs = [(locate(model, piece.target), piece) for piece in self.plan.blended]
        last = self._served.get(model)
        step = weights if last is None else weights - last.blend
        drift = exact_drift(weights) if last is None else last.drift + step_drift(step)
        add = (
            last is not None
            and self.grams is None  # a regression is linear in no expert
            and drift <= max_drift
            and int(np.count_nonzero(step)) + 1 < int(np.count_nonzero(weights))  # an update reads the dense model, too
            and all(out.dtype.itemsize >= 4 for out, _ in outputs)
        )
        with torch.no_grad():
            for out, piece in outputs:
                if add:
                    fill(out, self.checkpoint, piece, step.tolist(), add=True)
                else:
                    self.fill(out, piece, weights.tolist())
        self._served[model] = Merged(weights, drift if add else exact_drift(weights), incremental=add)
        return self._served[model]

    def fill(self, out: Tensor, piece: Piece, blend: Sequence[float]) -> None:
        """Write a piece of the merge by `blend` (K,) into its region of the dense tensor `out`."""
        fill(out, self.checkpoint, piece, blend)
        if self.grams is not None and piece.weights is None:
            self.grams.refine(out, piece, blend)

    def release(self) -> None:
        """Unmap what merges have read so far (it stays in the page cache)."""
        for file in self.files:
            file.release()

    def export(self, blend: ArrayLike, out: str | Path) -> Path:
        """Write the merge of a blend as a stock dense checkpoint with a certificate to the new folder `out`."""
        return export(self, out, blend=blend)

    def check(self, blend: ArrayLike | None) -> Blend:
        """Check a blend (uniform if None), and look through each expert of it once: no model ever gets a NaN."""
        K = self.num_experts
        weights = as_blend([1 / K] * K if blend is None else blend, experts=K)
        for expert in (k for k in range(K) if weights[k] and k not in self._trusted):
            check_finite(self.checkpoint, self.plan.blended, expert)
            self._trusted.add(expert)
        return weights


def open(path: str | Path, *, regression: bool = False) -> Moe:  # noqa: A001
    """Open an MoE checkpoint: a folder with a config.json and safetensors files, or a model id of the hub.

    With `regression`, blends are merged by regression, with the matrices that `tanbr grams` has put beside the experts.
    """
    if not Path(path).exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)):
        path = _fetched(str(path))
    return Moe(Checkpoint(path), regression=regression)


def _fetched(model_id: str) -> Path:
    try:
        return Path(snapshot_download(model_id, allow_patterns=FETCHED))
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(f"{model_id} is no folder here, and the hub does not give it ({reason})") from None


def exact_drift(blend: Blend) -> float:
    """Bound the rounding error of a merge in float32: one product and one sum per expert."""
    return float(UNIT * (np.count_nonzero(blend) + 1))


def step_drift(step: Blend) -> float:
    """Bound the rounding error that adding Σ_k step[k]·expert k puts on top."""
    return float(UNIT * (np.count_nonzero(step) + 2) * (1 + np.abs(step).sum()))
