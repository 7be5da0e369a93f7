"""`tanbr.open`: experts, wherever they come from, as one object, and the dense models that come out of it."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from numpy.typing import ArrayLike
from torch import Tensor, nn

from tanbr.errors import CheckpointError, InputError
from tanbr.merge.export import export
from tanbr.merge.methods import Method, choose
from tanbr.merge.skeleton import DensePlan, locate, skeleton
from tanbr.merge.sources import BlendOnly, ExpertSource, MoeCheckpoint, OverBase
from tanbr.merge.sources.expert_list import is_list, read_list
from tanbr.merge.sources.peft_folder import is_adapter, read_adapter
from tanbr.merge.stream import Places, stream
from tanbr.moe.checkpoint import Checkpoint, TensorFile, understood
from tanbr.moe.device import device_of
from tanbr.moe.family import Settings, Site
from tanbr.types import Blend, as_blend

FETCHED = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja", "LICENSE*"]


class Moe:
    """Experts of a source (an MoE checkpoint is one) that a method of `merge/methods` merges; none is in memory."""

    def __init__(self, source: Checkpoint | ExpertSource, *, method: str = "average", device: str = "cpu") -> None:
        self.device = device_of(device)  # where dense models are built
        self.source = MoeCheckpoint(source) if isinstance(source, Checkpoint) else source
        self.checkpoint = self.source.checkpoint
        self.family = self.source.family
        self.config: Settings = self.source.config
        self.sites: list[Site] = self.source.sites
        with understood(self.checkpoint):
            self.plan = DensePlan(self.family, self.config, self.sites, self.source.pieces)
        self.experts = self.source.experts(self.plan.blended, lambda: self.fingerprint)
        self.method: Method = choose(method, self.experts)
        self._trusted: set[int] = set()

    @property
    def path(self) -> Path:
        """The checkpoint's folder; the base's where experts are checkpoints of their own."""
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
        return self.source.count

    def dense(self, blend: ArrayLike | None = None) -> Any:
        """Build the dense transformers model, in eval mode, with `blend` merged into it (all experts alike if None)."""
        weights = self.check(blend)
        model = skeleton(self.plan, self.checkpoint)
        for _ in self.tensors(weights, into=partial(locate, model)):
            pass
        return model.to(self.device).eval()

    def merge_into(self, model: nn.Module, blend: ArrayLike) -> None:
        """Merge a blend (K,) into a dense model in place; only the tensors that depend on it change."""
        for _ in self.tensors(blend, into=partial(locate, model), changing=True):
            pass

    def tensors(
        self, blend: ArrayLike | None = None, *, into: Places | None = None, changing: bool = False
    ) -> Iterator[tuple[str, Tensor]]:
        """Merge a blend (K,), tensor by tensor: each dense tensor's name and the tensor, when it is written.

        `into` says where a tensor of a name is to be written (a new one each if None); with `changing`, only what
        depends on the blend is merged (of an MoE, the FFNs).
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
            self.experts.check(expert)
            self._trusted.add(expert)
        return weights


def open(  # noqa: A001
    path: str | Path,
    *,
    experts: Sequence[str | Path] = (),
    blend_only: BlendOnly | None = None,
    method: str | None = None,
    device: str = "cpu",
) -> Moe:
    """Open an MoE checkpoint: a folder with a config.json and safetensors files, or a model id of the hub.

    With `experts`, `path` is the dense base that these folders (or ids) were fine-tuned from: checkpoints, LoRA
    adapters as PEFT saves them, or both; `blend_only="ffn"` takes their FFNs and keeps the rest of the base. A TOML
    file lists base and experts, and may say the rest (`merge/sources/expert_list.py`); arguments go before it.
    `method` says how blends are merged: a name of `tanbr.merge.methods`, with settings as `ties:density=0.3`; `device`
    where its dense models are built, as cuda.
    """
    if is_list(path):
        if experts:
            raise InputError(f"{path} lists its experts; add {experts[0]} to it instead of naming it beside")
        listed = read_list(path)
        source = _over_base(
            listed.base,
            [expert.path for expert in listed.experts],
            blend_only or listed.blend_only,
            labels=[expert.labels for expert in listed.experts],
        )
        source.expert_tasks, source.weights = listed.tasks, listed.weights
        return Moe(source, method=listed.method if method is None else method, device=device)
    method = "average" if method is None else method
    if not experts:
        return Moe(Checkpoint(_local(path)), method=method, device=device)
    return Moe(_over_base(path, experts, blend_only or "all"), method=method, device=device)


def _over_base(
    base: str | Path, experts: Sequence[str | Path], blend_only: BlendOnly, *, labels: Sequence[Sequence[str]] = ()
) -> OverBase:
    folders = [_local(one) for one in experts]
    read = [read_adapter(one) if is_adapter(one) else Checkpoint(one) for one in folders]
    return OverBase(Checkpoint(_local(base)), read, blend_only=blend_only, labels=labels)


def _local(path: str | Path) -> Path:
    known = Path(path).exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", str(path))
    return Path(path) if known else _fetched(str(path))


def _fetched(model_id: str) -> Path:
    try:
        return Path(snapshot_download(model_id, allow_patterns=FETCHED))
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(f"{model_id} is no folder here, and the hub does not give it ({reason})") from None
