"""`tanbr.open`: an MoE checkpoint as one object, and the dense models that come out of it."""

import hashlib
import re
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from numpy.typing import ArrayLike
from torch import Tensor, nn

from tanbr.errors import CheckpointError
from tanbr.merge.blend import check_finite
from tanbr.merge.export import export
from tanbr.merge.methods import Experts, Method, choose
from tanbr.merge.plan import DensePlan
from tanbr.merge.skeleton import locate, skeleton
from tanbr.merge.stream import Places, stream
from tanbr.moe.checkpoint import Checkpoint, TensorFile, understood
from tanbr.moe.families import family_of, read_settings
from tanbr.moe.family import Settings, Site
from tanbr.types import Blend, as_blend

FETCHED = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja", "LICENSE*"]


class Moe:
    """An MoE checkpoint that can be merged by a method of `merge/methods`; no expert is in memory."""

    def __init__(self, checkpoint: Checkpoint, *, method: str = "average") -> None:
        self.checkpoint = checkpoint
        self.family = family_of(checkpoint.config)
        _check_depth(checkpoint)
        self.config: Settings = read_settings(checkpoint.config)
        with understood(checkpoint):
            self.sites: list[Site] = self.family.sites(checkpoint, self.config)
            pieces = self.family.plan(checkpoint, self.config, self.sites)
            self.plan = DensePlan(self.family, self.config, self.sites, pieces)
        self.experts = Experts(checkpoint, self.plan.blended, self.num_experts, lambda: self.fingerprint)
        self.method: Method = choose(method, self.experts)
        self._trusted: set[int] = set()

    @property
    def path(self) -> Path:
        """The checkpoint's folder."""
        return self.checkpoint.path

    @property
    def files(self) -> list[TensorFile]:
        """The files that a merge reads."""
        return self.checkpoint.files + self.method.files

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
        model = skeleton(self.plan, self.checkpoint)
        for _ in self.tensors(weights, into=partial(locate, model)):
            pass
        return model.eval()

    def merge_into(self, model: nn.Module, blend: ArrayLike) -> None:
        """Merge a blend (K,) into a dense model in place; only the FFNs' tensors change."""
        for _ in self.tensors(blend, into=partial(locate, model), changing=True):
            pass

    def tensors(
        self, blend: ArrayLike | None = None, *, into: Places | None = None, changing: bool = False
    ) -> Iterator[tuple[str, Tensor]]:
        """Merge a blend (K,), tensor by tensor: each dense tensor's name and the tensor, when it is written.

        `into` says where a tensor of a name is to be written (a new one each if None); with `changing`, only what
        depends on the blend is merged, the FFNs.
        """
        weights = self.check(blend).tolist()
        return stream(self.plan, self.checkpoint, self.method, weights, into=into, changing=changing)

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


def open(path: str | Path, *, method: str = "average") -> Moe:  # noqa: A001
    """Open an MoE checkpoint: a folder with a config.json and safetensors files, or a model id of the hub.

    `method` says how blends are merged: a name of `tanbr.merge.methods`, with settings as `ties:density=0.3`.
    """
    if not Path(path).exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)):
        path = _fetched(str(path))
    return Moe(Checkpoint(path), method=method)


def _check_depth(checkpoint: Checkpoint) -> None:
    """Refuse a configuration of more layers than there are tensors: a list of them may be all the memory there is."""
    for key, value in checkpoint.config.items():
        if "layers" in key and isinstance(value, int | float) and not value <= len(checkpoint.specs):
            raise CheckpointError(f"config.json of {checkpoint.path} says {key} {value}, more than it has tensors")


def _fetched(model_id: str) -> Path:
    try:
        return Path(snapshot_download(model_id, allow_patterns=FETCHED))
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(f"{model_id} is no folder here, and the hub does not give it ({reason})") from None
